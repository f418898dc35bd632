// Arithmetic on 16 floats at once, for any register width.
#pragma once

#include <cmath>

#include "vectors/lanes.h"

#if TM_WIDTH == 16
#include <immintrin.h>
#endif

namespace tokenmill {
namespace {

TM_INLINE Lanes splat(float value) {
  Lanes lanes;
  TM_UNROLL for (int i = 0; i < kLaneParts; i++) lanes.part[i] = Floats{} + value;
  return lanes;
}
TM_INLINE Lanes load_lanes(const float* at) {
  Lanes lanes;
  TM_UNROLL for (int i = 0; i < kLaneParts; i++)
    lanes.part[i] = load_vector<Floats>(at + i * TM_WIDTH);
  return lanes;
}
TM_INLINE void store_lanes(float* at, const Lanes& lanes) {
  TM_UNROLL for (int i = 0; i < kLaneParts; i++) store_vector(at + i * TM_WIDTH, lanes.part[i]);
}

// Applies a function of single registers to each register of its arguments.
template <class Function, class... More>
TM_INLINE Lanes each(Function function, const Lanes& first, const More&... more) {
  Lanes result;
  TM_UNROLL for (int i = 0; i < kLaneParts; i++)
    result.part[i] = function(first.part[i], more.part[i]...);
  return result;
}
TM_INLINE Lanes operator+(const Lanes& a, const Lanes& b) {
  return each([](Floats x, Floats y) { return x + y; }, a, b);
}
TM_INLINE Lanes operator*(const Lanes& a, const Lanes& b) {
  return each([](Floats x, Floats y) { return x * y; }, a, b);
}
// a * b + c
TM_INLINE Lanes fused(const Lanes& a, const Lanes& b, const Lanes& c) {
  return each([](Floats x, Floats y, Floats z) { return x * y + z; }, a, b, c);
}
TM_INLINE Lanes largest(const Lanes& a, const Lanes& b) {
  return each([](Floats x, Floats y) { return x > y ? x : y; }, a, b);
}

TM_INLINE float sum_of(const Lanes& lanes) {
#if TM_WIDTH == 16
  return _mm512_reduce_add_ps((__m512)lanes.part[0]);
#else
  float values[16];
  store_lanes(values, lanes);
  TM_UNROLL for (int width = 8; width > 0; width /= 2)
    TM_UNROLL for (int i = 0; i < width; i++) values[i] += values[i + width];
  return values[0];
#endif
}

TM_INLINE bool any_above(const Lanes& lanes, float bound) {
#if TM_WIDTH == 16
  return _mm512_cmp_ps_mask((__m512)lanes.part[0], _mm512_set1_ps(bound), _CMP_GT_OQ) != 0;
#else
  Ints above = {};
  TM_UNROLL for (int i = 0; i < kLaneParts; i++) above |= (Ints)(lanes.part[i] > bound);
  int32_t any = 0;
  for (int i = 0; i < TM_WIDTH; i++) any |= above[i];
  return any != 0;
#endif
}

// The largest lane. Lanes with NaN may be ignored or returned.
TM_INLINE float largest_of(const Lanes& lanes) {
#if TM_WIDTH == 16
  return _mm512_reduce_max_ps((__m512)lanes.part[0]);
#else
  float values[16];
  store_lanes(values, lanes);
  TM_UNROLL for (int width = 8; width > 0; width /= 2)
    TM_UNROLL for (int i = 0; i < width; i++)
      values[i] = values[i] > values[i + width] ? values[i] : values[i + width];
  return values[0];
#endif
}

// Lanes [begin, end) come from `yes`, the others from `no`.
TM_INLINE Lanes choose(int begin, int end, const Lanes& yes, const Lanes& no) {
  Lanes result;
  TM_UNROLL for (int i = 0; i < kLaneParts; i++) {
    Ints lane;
    TM_UNROLL for (int j = 0; j < TM_WIDTH; j++) lane[j] = i * TM_WIDTH + j;
    result.part[i] = (lane >= begin) & (lane < end) ? yes.part[i] : no.part[i];
  }
  return result;
}

// 2^x for x below 127, by a polynomial of degree kDegree in x - floor(x), minimax in the relative
// error: 7.5e-5 for degree 3, float's precision for degree 6. Far below -126 the result is 0. NaN
// stays NaN.
template <int kDegree>
TM_INLINE Floats exp2_of(Floats x) {
  static_assert(kDegree == 3 || kDegree == 6, "");
#if TM_WIDTH == 16
  const Floats f = (Floats)_mm512_reduce_ps((__m512)x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
#else
  const Floats lowest = Floats{} - 127.0f;
  const Floats inside = x < lowest ? lowest : x;
  // Adding 1.5 * 2^23 leaves the nearest integer in the low bits.
  const Floats shifted = inside - 0.5f + 0x1.8p23f;
  const Floats f = inside - (shifted - 0x1.8p23f);
#endif
  Floats p;
  if constexpr (kDegree == 3) {
    p = Floats{} + 7.802452264e-2f;
    p = p * f + 2.260671554e-1f;
    p = p * f + 6.958335405e-1f;
    p = p * f + 9.999252186e-1f;
  } else {
    p = Floats{} + 2.170225548e-4f;
    p = p * f + 1.243968782e-3f;
    p = p * f + 9.678840997e-3f;
    p = p * f + 5.548334198e-2f;
    p = p * f + 2.402298363e-1f;
    p = p * f + 6.931469838e-1f;
    p = p * f + 1.0f;
  }
#if TM_WIDTH == 16
  return (Floats)_mm512_scalef_ps((__m512)p, (__m512)x);  // the instruction takes floor(x)
#else
  const Floats scaled = (Floats)((Words)p + ((Words)shifted << 23));
  const Floats result = x < lowest + 1.0f ? Floats{} : scaled;
  return x == x ? result : x;  // without this, the bits of a NaN could become a number
#endif
}

// tanh(x): an odd polynomial near 0, elsewhere computed from e^2x (Cephes tanhf).
TM_INLINE Floats tanh_of(Floats x) {
  const Floats size = (Floats)((Ints)x & 0x7fffffff);
  const Floats z = x * x;
  Floats p = Floats{} - 5.70498872745e-3f;
  p = p * z + 2.06390887954e-2f;
  p = p * z - 5.37397155531e-2f;
  p = p * z + 1.33314422036e-1f;
  p = p * z - 3.33332819422e-1f;
  const Floats near = p * z * x + x;
  const Floats limit = Floats{} + 10.0f;
  const Floats bounded = size > limit ? limit : size;
  const Floats far = 1.0f - 2.0f / (exp2_of<6>(bounded * 2.88539008f) + 1.0f);
  const Floats signed_far = (Floats)((Ints)far | ((Ints)x & (int32_t)0x80000000));
  return size < 0.625f ? near : signed_far;
}

}  // namespace
}  // namespace tokenmill

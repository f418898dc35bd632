// Reads and multiplies numbers of the cache in float: for float caches, and for bfloat16 caches if
// the instruction set has no bfloat16 products.
#pragma once

#include "vectors/wide.h"

namespace tokenmill {
namespace {

// 16 words of 32 bits from two places with eight words each.
TM_INLINE Lanes join_halves(const uint8_t* first, const uint8_t* second) {
#if TM_WIDTH == 16
  const __m256 low = _mm256_loadu_ps(reinterpret_cast<const float*>(first));
  const __m256 high = _mm256_loadu_ps(reinterpret_cast<const float*>(second));
  return {(Floats)_mm512_insertf32x8(_mm512_castps256_ps512(low), high, 1)};
#else
  Lanes lanes;
  TM_UNROLL for (int i = 0; i < kLaneParts; i++) {
    const uint8_t* from = i < kLaneParts / 2 ? first : second;
    lanes.part[i] = load_vector<Floats>(from + i % (kLaneParts / 2) * TM_WIDTH * 4);
  }
  return lanes;
#endif
}

struct FloatSums {
  using Sum = Lanes;
  using Row = float;
  static constexpr int kExpDegree = 6;

  static TM_INLINE Lanes zero() { return splat(0.0f); }
  static TM_INLINE Lanes load_sum(const float* at) { return load_lanes(at); }
  static TM_INLINE void store(float* at, const Lanes& lanes) { store_lanes(at, lanes); }
  static TM_INLINE void store_row(float* at, const Lanes& lanes) { store_lanes(at, lanes); }
};

struct FloatElements : FloatSums {
  using Given = float;
  using Vector = Lanes;
  static constexpr int kPack = 1;

  static TM_INLINE void pack(const float* from, int64_t count, float* to) {
    std::memcpy(to, from, count * sizeof(float));
  }
  static TM_INLINE Lanes load(const uint8_t* at) {
    return load_lanes(reinterpret_cast<const float*>(at));
  }
  static TM_INLINE Lanes load_halves(const uint8_t* first, const uint8_t* second) {
    return join_halves(first, second);
  }
  static TM_INLINE Lanes keep_first(const Lanes& lanes) { return lanes; }
  static TM_INLINE float broadcast(const float* at) { return *at; }
  static TM_INLINE void multiply_add(Lanes& sum, const Lanes& a, float b) {
    TM_UNROLL for (int i = 0; i < kLaneParts; i++) sum.part[i] += a.part[i] * b;
  }
};

struct WidenedElements : FloatSums {
  using Given = uint16_t;
  using Vector = Lanes;  // of pairs of bfloat16
  static constexpr int kPack = 2;

  static TM_INLINE void pack(const uint16_t* from, int64_t count, float* to) {
    for (int64_t i = 0; i < count; i += TM_WIDTH) store_vector(to + i, floats_from_bf16(from + i));
  }
  static TM_INLINE Lanes load(const uint8_t* at) {
    return load_lanes(reinterpret_cast<const float*>(at));
  }
  static TM_INLINE Lanes load_halves(const uint8_t* first, const uint8_t* second) {
    return join_halves(first, second);
  }
  static TM_INLINE Lanes keep_first(const Lanes& lanes) {
    return each([](Floats x) { return (Floats)((Words)x & 0xffffu); }, lanes);
  }
  struct Pair {
    float first, second;
  };
  static TM_INLINE Pair broadcast(const float* at) { return {at[0], at[1]}; }
  static TM_INLINE void multiply_add(Lanes& sum, const Lanes& a, const Pair& b) {
    TM_UNROLL for (int i = 0; i < kLaneParts; i++) {
      const Words words = (Words)a.part[i];
      sum.part[i] += (Floats)(words << 16) * b.first;
      sum.part[i] += (Floats)(words & 0xffff0000u) * b.second;
    }
  }
};

}  // namespace
}  // namespace tokenmill

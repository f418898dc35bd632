// 16 float lanes on registers of any width, by the compilers' vector extensions.
//
// The compiler's flags choose the instruction set, and so the width.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#if defined(__AVX512F__)
#define TM_WIDTH 16
#elif defined(__AVX2__)
#define TM_WIDTH 8
#else
#define TM_WIDTH 4
#endif

#define TM_INLINE inline __attribute__((always_inline))
#define TM_UNROLL _Pragma("GCC unroll 16")

namespace tokenmill {
namespace {

typedef float Floats __attribute__((vector_size(TM_WIDTH * 4)));
typedef uint32_t Words __attribute__((vector_size(TM_WIDTH * 4)));
typedef int32_t Ints __attribute__((vector_size(TM_WIDTH * 4)));
typedef uint16_t Halves __attribute__((vector_size(TM_WIDTH * 2)));
typedef int16_t ShortInts __attribute__((vector_size(TM_WIDTH * 2)));

constexpr int kLaneParts = 16 / TM_WIDTH;

struct Lanes {
  Floats part[kLaneParts];
};

template <class Vector, class Source>
TM_INLINE Vector load_vector(const Source* at) {
  Vector value;
  std::memcpy(&value, at, sizeof(value));
  return value;
}

template <class Vector, class Target>
TM_INLINE void store_vector(Target* at, Vector value) {
  std::memcpy(at, &value, sizeof(value));
}

// Half precision to float: shifts the bits into place, then multiplies to correct the exponent's
// bias. The multiplication also converts subnormals.
TM_INLINE Floats floats_from_fp16(const uint16_t* at) {
#if defined(__AVX512F__)
  return (Floats)_mm512_cvtph_ps((__m256i)load_vector<Halves>(at));
#elif defined(__F16C__)
  return (Floats)_mm256_cvtph_ps((__m128i)load_vector<Halves>(at));
#elif defined(__aarch64__)
  return (Floats)vcvt_f32_f16((float16x4_t)load_vector<Halves>(at));
#else
  const Words bits = __builtin_convertvector(load_vector<Halves>(at), Words);
  const Words sign = (bits & 0x8000u) << 16;
  const Floats magnitude = (Floats)((bits & 0x7fffu) << 13) * 0x1p112f;
  return (Floats)((Words)magnitude | sign);
#endif
}

// Compilers convert bytes one by one, so intrinsics do it where they can.
typedef int8_t SmallInts __attribute__((vector_size(TM_WIDTH)));
TM_INLINE Ints ints_from_int8(const uint8_t* at) {
  const auto small = load_vector<SmallInts>(at);
#if defined(__AVX512F__)
  return (Ints)_mm512_cvtepi8_epi32((__m128i)small);
#elif defined(__AVX2__)
  return (Ints)_mm256_cvtepi8_epi32(_mm_cvtsi64_si128((int64_t)small));
#elif defined(__SSE2__)
  int32_t four;
  std::memcpy(&four, &small, sizeof(four));
  const __m128i bytes = _mm_cvtsi32_si128(four), words = _mm_unpacklo_epi8(bytes, bytes);
  return (Ints)_mm_srai_epi32(_mm_unpacklo_epi16(words, words), 24);
#elif defined(__aarch64__)
  uint32_t four;
  std::memcpy(&four, &small, sizeof(four));
  const int16x8_t words = vmovl_s8(vcreate_s8(four));
  return (Ints)vmovl_s16(vget_low_s16(words));
#else
  return __builtin_convertvector(small, Ints);
#endif
}
// Replaces bytes below 16 by those of a table.
TM_INLINE Words look_up(const int8_t* table, Words places) {
#if defined(__AVX512BW__)
  const __m128i bytes = load_vector<__m128i>(table);
  return (Words)_mm512_shuffle_epi8(_mm512_broadcast_i32x4(bytes), (__m512i)places);
#elif defined(__AVX2__)
  const __m128i bytes = load_vector<__m128i>(table);
  return (Words)_mm256_shuffle_epi8(_mm256_broadcastsi128_si256(bytes), (__m256i)places);
#elif defined(__aarch64__)
  return (Words)vqtbl1q_s8(vld1q_s8(table), (uint8x16_t)places);
#else
  uint8_t bytes[sizeof(Words)];
  std::memcpy(bytes, &places, sizeof(bytes));
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(table[byte]);
  return load_vector<Words>(bytes);
#endif
}
TM_INLINE void store_int8(int8_t* at, Ints value) {
#if defined(__AVX512F__)
  store_vector(at, _mm512_cvtepi32_epi8((__m512i)value));
#elif defined(__SSE2__)
  typedef int32_t Four __attribute__((vector_size(16)));
  Four parts[TM_WIDTH / 4];
  std::memcpy(parts, &value, sizeof(parts));
  const __m128i low = (__m128i)parts[0], high = (__m128i)parts[TM_WIDTH / 4 - 1];
  const __m128i words = _mm_packs_epi32(low, high);
  const __m128i bytes = _mm_packs_epi16(words, words);
  std::memcpy(at, &bytes, TM_WIDTH);
#elif defined(__aarch64__)
  const int16x4_t words = vmovn_s32((int32x4_t)value);
  const int8x8_t bytes = vmovn_s16(vcombine_s16(words, words));
  std::memcpy(at, &bytes, TM_WIDTH);
#else
  store_vector(at, __builtin_convertvector(value, SmallInts));
#endif
}

TM_INLINE Floats floats_from_bf16(const uint16_t* at) {
  return (Floats)(__builtin_convertvector(load_vector<Halves>(at), Words) << 16);
}

// Rounds to nearest, ties to even. NaN stays NaN.
TM_INLINE void store_bf16(uint16_t* at, Floats value) {
#if defined(__AVX512BF16__)
  store_vector(at, _mm512_cvtneps_pbh((__m512)value));
#else
  const Words bits = (Words)value;
  const Words rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const Words quiet = (bits >> 16) | 0x40u;
  const Words is_nan = (Words)((bits & 0x7fffffffu) > 0x7f800000u);
  store_vector(at, __builtin_convertvector((is_nan & quiet) | (~is_nan & rounded), Halves));
#endif
}

// e^x to about 2 ulp: 2^n times a polynomial on [-ln2/2, ln2/2] (Cephes expf). Arguments are
// clamped to the range in which the result is a normal number.
TM_INLINE Floats exp_of(Floats x) {
  const Floats lowest = Floats{} - 87.0f, highest = Floats{} + 88.0f;
  x = x < lowest ? lowest : x;
  x = x > highest ? highest : x;
  // Adding 1.5 * 2^23 leaves the nearest integer in the low bits.
  const Floats shifted = x * 1.44269504f + 0x1.8p23f;
  const Floats n = shifted - 0x1.8p23f;
  const Floats r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
  Floats p = Floats{} + 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  return (Floats)((Ints)p + ((Ints)shifted << 23));
}

TM_INLINE Floats silu(Floats x) { return x / (1.0f + exp_of(-x)); }

// x / 2 * (1 + tanh(y)) with y = sqrt(2 / pi) * (x + 0.044715 x^3), as x / (1 + e^-2y).
TM_INLINE Floats gelu(Floats x) {
  return x / (1.0f + exp_of(x * (x * x * -0.0713548163f - 1.5957691216f)));
}

}  // namespace
}  // namespace tokenmill

// Attention by bfloat16 dot products: 16 pairs times one broadcast pair, summed in float.
#pragma once

#include "attention/elements.h"

namespace tokenmill {
namespace {

struct BF16Elements {
  using Given = uint16_t;
  using Row = uint16_t;
  using Sum = __m512;
  using Vector = __m512bh;
  static constexpr int kPack = 2;
  static constexpr int kExpDegree = 3;  // weights are rounded to 8 bits

  static TM_INLINE __m512 zero() { return _mm512_setzero_ps(); }
  static TM_INLINE __m512 load_sum(const float* at) { return _mm512_loadu_ps(at); }
  static TM_INLINE void store(float* at, __m512 value) { _mm512_storeu_ps(at, value); }
  static TM_INLINE void store_row(uint16_t* at, const Lanes& lanes) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(at),
                        (__m256i)_mm512_cvtneps_pbh((__m512)lanes.part[0]));
  }
  static TM_INLINE void pack(const uint16_t* from, int64_t count, uint16_t* to) {
    std::memcpy(to, from, count * sizeof(uint16_t));
  }
  static TM_INLINE __m512bh load(const uint8_t* at) { return (__m512bh)_mm512_loadu_si512(at); }
  static TM_INLINE __m512bh load_halves(const uint8_t* first, const uint8_t* second) {
    return (__m512bh)join_halves(first, second).part[0];
  }
  static TM_INLINE __m512bh keep_first(__m512bh pairs) {
    return (__m512bh)_mm512_and_si512((__m512i)pairs, _mm512_set1_epi32(0xffff));
  }
  static TM_INLINE __m512bh broadcast(const uint16_t* at) {
    int pair;
    std::memcpy(&pair, at, sizeof(pair));
    return (__m512bh)_mm512_set1_epi32(pair);
  }
  static TM_INLINE void multiply_add(__m512& sum, __m512bh a, __m512bh b) {
    sum = _mm512_dpbf16_ps(sum, a, b);
  }
};

}  // namespace
}  // namespace tokenmill

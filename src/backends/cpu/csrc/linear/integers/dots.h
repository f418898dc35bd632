// Sums of products of small integers, for each instruction set.
//
// A Dot is TM_WIDTH sums, one for each row of a register of weights. `add` multiplies two registers,
// whose 32-bit lanes have the numbers of four inputs, by eight int8 inputs of one row: w0 by the
// first four, w1 by the others. kBits is the size of a number: numbers of 8 bits are signed.
#pragma once

#include "linear/linear.h"
#include "vectors/wide.h"

namespace tokenmill {
namespace {

#if !defined(__ARM_FEATURE_DOTPROD)
// Four inputs in each lane of a register, and the next four.
struct EightInputs {
  Words first, second;
};
TM_INLINE EightInputs eight_inputs(const int8_t* at) {
  uint32_t first, second;
  std::memcpy(&first, at, sizeof(first));
  std::memcpy(&second, at + 4, sizeof(second));
  return {Words{} + first, Words{} + second};
}
#endif

#if defined(__SSE2__)
// Ends an addition here. Otherwise compilers compute more products than there are registers, and
// then add them in trees.
template <class Vector>
TM_INLINE void finish_sum(Vector& sum) {
  asm("" : "+x"(sum));
}
#endif

#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)

// vpdpbusd multiplies unsigned by signed bytes and adds four products to a sum. Numbers of 8 bits
// become unsigned by adding kZeroOfBytes; the sums start with what takes that off again.
constexpr int kZeroOfBytes = 128;

#if defined(__AVX512VNNI__)
TM_INLINE Ints add_products(Ints sum, Words w, Words x) {
  return (Ints)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)w, (__m512i)x);
}
#else
TM_INLINE Ints add_products(Ints sum, Words w, Words x) {
  return (Ints)_mm256_dpbusd_avx_epi32((__m256i)sum, (__m256i)w, (__m256i)x);
}
#endif

template <int kBits>
class Dot {
 public:
  TM_INLINE void start(int32_t offset) { sum_ = Ints{} + offset; }
  TM_INLINE void add(Words w0, Words w1, const EightInputs& x) {
    sum_ = add_products(sum_, unsigned_of(w0), x.first);
    sum_ = add_products(sum_, unsigned_of(w1), x.second);
  }
  TM_INLINE Ints total() const { return sum_; }

 private:
  static TM_INLINE Words unsigned_of(Words w) { return kBits == 8 ? w ^ 0x80808080u : w; }
  Ints sum_;
};

#elif defined(__AVX2__)

// vpmaddubsw multiplies unsigned by signed bytes and adds pairs of products, in 16 bits.
constexpr int kZeroOfBytes = 0;

#if defined(__AVX512F__)
typedef __m512i Register;
TM_INLINE Register multiply_pairs(Words w, Words x) {
  return _mm512_maddubs_epi16((Register)w, (Register)x);
}
TM_INLINE Register add_16(Register a, Register b) { return _mm512_add_epi16(a, b); }
TM_INLINE Register add_pairs(Register a) { return _mm512_madd_epi16(a, _mm512_set1_epi16(1)); }
TM_INLINE Words magnitude(Words w) { return (Words)_mm512_abs_epi8((Register)w); }
// x where w is not negative, -x elsewhere.
TM_INLINE Words with_sign(Words x, Words w) {
  const __mmask64 negative = _mm512_movepi8_mask((Register)w);
  return (Words)_mm512_mask_sub_epi8((Register)x, negative, _mm512_setzero_si512(), (Register)x);
}
#else
typedef __m256i Register;
TM_INLINE Register multiply_pairs(Words w, Words x) {
  return _mm256_maddubs_epi16((Register)w, (Register)x);
}
TM_INLINE Register add_16(Register a, Register b) { return _mm256_add_epi16(a, b); }
TM_INLINE Register add_pairs(Register a) { return _mm256_madd_epi16(a, _mm256_set1_epi16(1)); }
TM_INLINE Words magnitude(Words w) { return (Words)_mm256_abs_epi8((Register)w); }
TM_INLINE Words with_sign(Words x, Words w) {
  return (Words)_mm256_sign_epi8((Register)x, (Register)w);
}
#endif

// Sums of two pairs of products fit into 16 bits: 4 * 63 * 127 < 2^15.
template <int kBits>
class Dot {
 public:
  TM_INLINE void start(int32_t offset) { sum_ = Ints{} + offset; }
  TM_INLINE void add(Words w0, Words w1, const EightInputs& x) {
    sum_ += (Ints)add_pairs(add_16(multiply_pairs(w0, x.first), multiply_pairs(w1, x.second)));
    finish_sum(sum_);
  }
  TM_INLINE Ints total() const { return sum_; }

 private:
  Ints sum_;
};

// Sums of 16 pairs of products fit into 16 bits: 16 * 15 * 127 < 2^15.
template <>
class Dot<4> {
 public:
  TM_INLINE void start(int32_t) { sum_ = Register{}; }
  TM_INLINE void add(Words w0, Words w1, const EightInputs& x) {
    sum_ = add_16(sum_, multiply_pairs(w0, x.first));
    finish_sum(sum_);
    sum_ = add_16(sum_, multiply_pairs(w1, x.second));
    finish_sum(sum_);
  }
  TM_INLINE Ints total() const { return (Ints)add_pairs(sum_); }

 private:
  Register sum_;
};

// A pair of products fits into 16 bits: 2 * 128 * 127 < 2^15. The sign of a weight goes to the input.
template <>
class Dot<8> {
 public:
  TM_INLINE void start(int32_t offset) { sum_ = Ints{} + offset; }
  TM_INLINE void add(Words w0, Words w1, const EightInputs& x) {
    sum_ += (Ints)add_pairs(multiply_pairs(magnitude(w0), with_sign(x.first, w0)));
    finish_sum(sum_);
    sum_ += (Ints)add_pairs(multiply_pairs(magnitude(w1), with_sign(x.second, w1)));
    finish_sum(sum_);
  }
  TM_INLINE Ints total() const { return sum_; }

 private:
  Ints sum_;
};

#elif defined(__SSE2__)

// pmaddwd multiplies 16-bit numbers and adds pairs of products. A Dot has a sum for each pair of
// inputs: of rows 0 and 1, and of rows 2 and 3.
constexpr int kZeroOfBytes = 0;

template <int kBits>
class Dot {
 public:
  TM_INLINE void start(int32_t offset) {
    low_ = high_ = _mm_and_si128(_mm_set1_epi32(offset), _mm_set_epi32(0, -1, 0, -1));
  }
  TM_INLINE void add(Words w0, Words w1, const EightInputs& x) {
    add_line((__m128i)w0, (__m128i)x.first);
    add_line((__m128i)w1, (__m128i)x.second);
  }
  TM_INLINE Ints total() const {
    const __m128 low = _mm_castsi128_ps(low_), high = _mm_castsi128_ps(high_);
    return (Ints)_mm_shuffle_ps(low, high, 0x88) + (Ints)_mm_shuffle_ps(low, high, 0xdd);
  }

 private:
  TM_INLINE void add_line(__m128i w, __m128i x) {
    const __m128i inputs = _mm_srai_epi16(_mm_unpacklo_epi8(x, x), 8);
    low_ = _mm_add_epi32(low_, _mm_madd_epi16(widened(_mm_unpacklo_epi8(w, w)), inputs));
    high_ = _mm_add_epi32(high_, _mm_madd_epi16(widened(_mm_unpackhi_epi8(w, w)), inputs));
    finish_sum(low_);
    finish_sum(high_);
  }
  // Numbers of fewer than 8 bits are not negative.
  static TM_INLINE __m128i widened(__m128i twice) { return _mm_srai_epi16(twice, 8); }

  __m128i low_, high_;
};

#elif defined(__ARM_FEATURE_DOTPROD)

// sdot multiplies signed bytes and adds four products to a sum.
constexpr int kZeroOfBytes = 0;

typedef int8x8_t EightInputs;
TM_INLINE EightInputs eight_inputs(const int8_t* at) { return vld1_s8(at); }

template <int kBits>
class Dot {
 public:
  TM_INLINE void start(int32_t offset) { sum_ = vdupq_n_s32(offset); }
  TM_INLINE void add(Words w0, Words w1, EightInputs x) {
    sum_ = vdotq_lane_s32(sum_, (int8x16_t)w0, x, 0);
    sum_ = vdotq_lane_s32(sum_, (int8x16_t)w1, x, 1);
  }
  TM_INLINE Ints total() const { return (Ints)sum_; }

 private:
  int32x4_t sum_;
};

#else

constexpr int kZeroOfBytes = 0;

// Multiplies byte by byte.
template <int kBits>
class Dot {
 public:
  TM_INLINE void start(int32_t offset) { sum_ = Ints{} + offset; }
  TM_INLINE void add(Words w0, Words w1, const EightInputs& x) {
    add_line(w0, x.first);
    add_line(w1, x.second);
  }
  TM_INLINE Ints total() const { return sum_; }

 private:
  TM_INLINE void add_line(Words w, Words x) {
    TM_UNROLL for (int left = 0; left < 32; left += 8)
      sum_ += ((Ints)(w << left) >> 24) * ((Ints)(x << left) >> 24);
  }
  Ints sum_;
};

#endif

// The sums of the rows of inputs that are multiplied together.
template <int kBits, int kRows>
class RowDots;

template <int kBits>
class RowDots<kBits, 1> {
 public:
  static TM_INLINE EightInputs inputs(const int8_t* row, const int8_t*) {
    return eight_inputs(row);
  }
  TM_INLINE void start(int32_t offset, int32_t) { dot_.start(offset); }
  TM_INLINE void add(Words w0, Words w1, const EightInputs& x) { dot_.add(w0, w1, x); }
  TM_INLINE Ints total(int) const { return dot_.total(); }

 private:
  Dot<kBits> dot_;
};

#if defined(__ARM_FEATURE_MATMUL_INT8)

template <int kTileRows>
constexpr int kRowsTogether = kTileRows == 1 ? 1 : 2;

// smmla multiplies two rows of eight weights by two rows of eight inputs.
template <int kBits>
class RowDots<kBits, 2> {
 public:
  static TM_INLINE int8x16_t inputs(const int8_t* first, const int8_t* second) {
    return vcombine_s8(vld1_s8(first), vld1_s8(second));
  }
  TM_INLINE void start(int32_t first, int32_t second) {
    const int32x2_t both = vset_lane_s32(second, vdup_n_s32(first), 1);
    low_ = high_ = vcombine_s32(both, both);
  }
  TM_INLINE void add(Words w0, Words w1, int8x16_t x) {
    const int32x4_t a = (int32x4_t)w0, b = (int32x4_t)w1;
    low_ = vmmlaq_s32(low_, (int8x16_t)vzip1q_s32(a, b), x);
    high_ = vmmlaq_s32(high_, (int8x16_t)vzip2q_s32(a, b), x);
  }
  TM_INLINE Ints total(int row) const {
    return (Ints)(row == 0 ? vuzp1q_s32(low_, high_) : vuzp2q_s32(low_, high_));
  }

 private:
  int32x4_t low_, high_;  // rows 0 and 1 of weights, and 2 and 3, each with two rows of inputs
};

#else

template <int kTileRows>
constexpr int kRowsTogether = 1;

#endif

// The number that makes a layout's numbers unsigned bytes. It is added to them, or was added
// before.
template <Layout kLayout>
constexpr int kZeroOf = is_signed(kLayout) ? kZeroOfBytes : zero_of(kLayout);
template <Layout kLayout>
constexpr bool kHasOffsets = kZeroOf<kLayout> != 0;

}  // namespace
}  // namespace tokenmill

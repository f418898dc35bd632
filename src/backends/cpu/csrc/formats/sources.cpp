#include "formats/sources.h"

#include <cmath>
#include <cstring>
#include <stdexcept>

namespace tokenmill {
namespace {

uint16_t half_at(const uint8_t* from) {
  uint16_t half;
  std::memcpy(&half, from, 2);
  return half;
}

// -d * 2^shift in fp16, exactly.
uint16_t negative_shifted(uint16_t d, int shift) {
  const auto sign = static_cast<uint16_t>(~d & 0x8000);
  int exponent = d >> 10 & 31, mantissa = d & 1023;
  if (exponent == 0) {
    for (mantissa <<= shift; mantissa >= 2048; mantissa >>= 1) exponent++;
    if (mantissa >= 1024) exponent++;  // no longer subnormal
    return static_cast<uint16_t>(sign | exponent << 10 | (mantissa & 1023));
  }
  if (exponent + shift >= 31) throw std::range_error("a scale is too large");
  return static_cast<uint16_t>(sign | (exponent + shift) << 10 | mantissa);
}

// Eight bytes at once: no instruction set but the oldest is assumed here.
uint64_t eight_at(const uint8_t* from) {
  uint64_t eight;
  std::memcpy(&eight, from, 8);
  return eight;
}
constexpr uint64_t in_each_byte(uint64_t byte) { return byte * 0x0101010101010101u; }

// Splits `count` bytes, a multiple of 8, into numbers of four bits.
void split_nibbles(const uint8_t* from, int count, uint8_t* lower, uint8_t* upper) {
  for (int i = 0; i < count; i += 8) {
    const uint64_t both = eight_at(from + i);
    const uint64_t low = both & in_each_byte(15), high = both >> 4 & in_each_byte(15);
    std::memcpy(lower + i, &low, 8);
    std::memcpy(upper + i, &high, 8);
  }
}

// Adds `bits` bits of each of `count` bytes, from bit `shift` on, to numbers of four bits.
void add_upper_bits(const uint8_t* from, int count, int shift, int bits, uint8_t* numbers) {
  for (int i = 0; i < count; i += 8) {
    const uint64_t upper = eight_at(from + i) >> shift & in_each_byte((1u << bits) - 1);
    const uint64_t sum = eight_at(numbers + i) | upper << 4;
    std::memcpy(numbers + i, &sum, 8);
  }
}

// Blocks of 32: inputs i and i + 16 share byte i.
void read_nibbles(const uint8_t* from, uint8_t* numbers) {
  split_nibbles(from, 16, numbers, numbers + 16);
}
void read_fifth_bits(const uint8_t* from, uint8_t* numbers) {
  for (int i = 0; i < 32; i++) numbers[i] |= (from[i / 8] >> i % 8 & 1) << 4;
}

void read_scaled(const uint8_t* from, int bits, int zero_shift, StepRow* to) {
  to->factors[0] = half_at(from);
  to->factors[1] = negative_shifted(to->factors[0], zero_shift);
  read_nibbles(from + (bits == 5 ? 6 : 2), to->numbers);
  if (bits == 5) read_fifth_bits(from + 2, to->numbers);
}

void read_with_minimum(const uint8_t* from, int bits, StepRow* to) {
  to->factors[0] = half_at(from);
  to->factors[1] = half_at(from + 2);
  read_nibbles(from + (bits == 5 ? 8 : 4), to->numbers);
  if (bits == 5) read_fifth_bits(from + 4, to->numbers);
}

void read_q8_0(const uint8_t* from, StepRow* to) {
  to->factors[0] = half_at(from);
  std::memcpy(to->numbers, from + 2, kBlock);
}

void read_iq4_nl(const uint8_t* from, StepRow* to) {
  to->factors[0] = half_at(from);
  read_nibbles(from + 2, to->numbers);
}

void read_mxfp4(const uint8_t* from, StepRow* to) {
  // 2^(exponent - 128), because the layout's table has twice the numbers of E2M1.
  to->factors[0] = static_cast<uint16_t>(from[0] < 2 ? 32 << from[0] : (from[0] - 1) << 7);
  read_nibbles(from + 1, to->numbers);
}

void read_iq4_xs(const uint8_t* from, StepRow* to) {
  to->factors[0] = half_at(from);
  for (int i = 0; i < 8; i++) {
    const int nibble = from[4 + i / 2] >> i % 2 * 4 & 15, upper = from[2 + i / 4] >> i % 4 * 2 & 3;
    to->scales[i] = static_cast<int8_t>((nibble | upper << 4) - 32);
    read_nibbles(from + 8 + i * 16, to->numbers + i * kBlock);
  }
}

// Scales and minima of Q4_K and Q5_K: 12 bytes with 6 bits each.
void read_scales_k(const uint8_t* from, StepRow* to) {
  for (int i = 0; i < 8; i++) {
    const int scale = i < 4 ? from[i] & 63 : (from[i + 4] & 15) | (from[i - 4] >> 6) << 4;
    const int minimum = i < 4 ? from[i + 4] & 63 : from[i + 4] >> 4 | (from[i] >> 6) << 4;
    to->scales[i] = static_cast<int8_t>(scale);
    to->minima[i] = static_cast<int8_t>(minimum);
  }
}

// 32 bytes have the nibbles of two blocks; 32 bytes have the fifth bits of eight.
void read_q4_q5_k(const uint8_t* from, int bits, StepRow* to) {
  to->factors[0] = half_at(from);
  to->factors[1] = half_at(from + 2) ^ 0x8000;  // minima are subtracted
  read_scales_k(from + 4, to);
  const uint8_t* high = from + 16;
  const uint8_t* low = bits == 5 ? high + 32 : high;
  for (int i = 0; i < 4; i++)
    split_nibbles(low + i * 32, 32, to->numbers + i * 64, to->numbers + i * 64 + 32);
  for (int block = 0; bits == 5 && block < 8; block++)
    add_upper_bits(high, 32, block, 1, to->numbers + block * 32);
}

// Each 128 inputs: 64 bytes of nibbles and 32 bytes of upper bits.
void read_q6_k(const uint8_t* from, StepRow* to) {
  for (int part = 0; part < 2; part++) {
    const uint8_t *low = from + part * 64, *high = from + 128 + part * 32;
    uint8_t* numbers = to->numbers + part * 128;
    split_nibbles(low, 64, numbers, numbers + 64);
    for (int i = 0; i < 4; i++) add_upper_bits(high, 32, i * 2, 2, numbers + i * 32);
  }
  std::memcpy(to->scales, from + 192, 16);
  to->factors[0] = half_at(from + 208);
}

// Each 128 inputs: 32 bytes with two bits of four blocks.
void read_two_bits(const uint8_t* from, uint8_t* numbers) {
  for (int i = 0; i < kSuperBlock; i++)
    numbers[i] = from[i / 128 * 32 + i % 32] >> i / 32 % 4 * 2 & 3;
}

void read_q2_k(const uint8_t* from, StepRow* to) {
  std::memcpy(to->scales, from, 16);
  read_two_bits(from + 16, to->numbers);
  to->factors[0] = half_at(from + 80);
  to->factors[1] = half_at(from + 82) ^ 0x8000;  // minima are subtracted
}

void read_q3_k(const uint8_t* from, StepRow* to) {
  const uint8_t *high = from, *scales = from + 96;
  read_two_bits(from + 32, to->numbers);
  for (int i = 0; i < kSuperBlock; i++)
    to->numbers[i] |= (high[i % 32] >> i / 32 & 1) << 2;
  for (int i = 0; i < 16; i++) {
    const int nibble = scales[i % 8] >> i / 8 * 4 & 15;
    const int upper = scales[8 + i % 4] >> i / 4 * 2 & 3;
    to->scales[i] = static_cast<int8_t>((nibble | upper << 4) - 32);
  }
  to->factors[0] = half_at(from + 108);
}

}  // namespace

float float_from_fp16(uint16_t half) {
  const int exponent = half >> 10 & 31, mantissa = half & 1023;
  const float sign = half & 0x8000 ? -1.0f : 1.0f;
  if (exponent == 31) return mantissa ? NAN : sign * INFINITY;
  const int significand = exponent == 0 ? mantissa : mantissa + 1024;
  return sign * std::ldexp(static_cast<float>(significand), (exponent == 0 ? 1 : exponent) - 25);
}

void read_step(Source source, const uint8_t* from, StepRow* to) {
  switch (source) {
    case Source::kQ4_0: return read_scaled(from, 4, 3, to);
    case Source::kQ4_1: return read_with_minimum(from, 4, to);
    case Source::kQ5_0: return read_scaled(from, 5, 4, to);
    case Source::kQ5_1: return read_with_minimum(from, 5, to);
    case Source::kQ8_0: return read_q8_0(from, to);
    case Source::kIQ4_NL: return read_iq4_nl(from, to);
    case Source::kMXFP4: return read_mxfp4(from, to);
    case Source::kQ2_K: return read_q2_k(from, to);
    case Source::kQ3_K: return read_q3_k(from, to);
    case Source::kQ4_K: return read_q4_q5_k(from, 4, to);
    case Source::kQ5_K: return read_q4_q5_k(from, 5, to);
    case Source::kQ6_K: return read_q6_k(from, to);
    case Source::kIQ4_XS: return read_iq4_xs(from, to);
    case Source::kF32:
    case Source::kBF16:
    case Source::kF16: break;
  }
  throw std::invalid_argument("not a quantized source");
}

}  // namespace tokenmill

// Keys and values in 8 bits: sign, exponent and mantissa as in the OCP's specification of FP8.
// Float, half and bfloat16 represent all of these numbers exactly.
#pragma once

#include <type_traits>

#include "platform.h"

#ifdef __CUDACC__
#include <cuda_fp8.h>
#endif

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
#define TOKENMILL_HAS_FP8 1  // the GPU has instructions for it
#else
#define TOKENMILL_HAS_FP8 0
#endif

namespace tokenmill {

struct E4M3 {  // has NaN, but no infinity
  static constexpr int kMantissa = 3;
  static constexpr int kBias = 7;
  static constexpr uint32_t kLargestCode = 0x7e;
  static constexpr float kLargest = 448;
  static constexpr float kSmallestNormal = 0x1p-6f;
  uint8_t bits;
};

struct E5M2 {
  static constexpr int kMantissa = 2;
  static constexpr int kBias = 15;
  static constexpr uint32_t kLargestCode = 0x7b;
  static constexpr float kLargest = 57344;
  static constexpr float kSmallestNormal = 0x1p-14f;
  uint8_t bits;
};

template <typename C>
constexpr bool kIsFp8 = sizeof(C) == 1;

// Converts with integer and float arithmetic only, for GPUs without the instructions, and CPUs.
template <typename C>
__device__ __forceinline__ float to_float_by_arithmetic(C code) {
  constexpr int kShift = 23 - C::kMantissa;
  const uint32_t size = code.bits & 0x7f, sign = uint32_t(code.bits & 0x80) << 24;
  // A float with these fields, even a subnormal one, is too small by the difference of the biases.
  const float factor = __uint_as_float(uint32_t(2 * 127 - C::kBias) << 23);
  const uint32_t value = __float_as_uint(__uint_as_float(size << kShift) * factor);
  const uint32_t special = 0x7f800000u | size << kShift;  // infinite or NaN
  return __uint_as_float(sign | (size > C::kLargestCode ? special : value));
}

// Rounds to nearest, ties to even. Numbers that are too large become the largest finite number.
template <typename C>
__device__ __forceinline__ C narrow_by_arithmetic(float value) {
  constexpr int kShift = 23 - C::kMantissa;
  const uint32_t sign = __float_as_uint(value) >> 24 & 0x80;
  if (value != value) return {static_cast<uint8_t>(sign | 0x7f)};
  const float size = fminf(fabsf(value), C::kLargest);
  uint32_t code;
  if (size < C::kSmallestNormal) {
    // The last bit of this sum is worth the smallest subnormal, so the sum rounds to its multiples.
    constexpr uint32_t kAnchor = uint32_t(127 + 24 - C::kBias - C::kMantissa) << 23;
    code = __float_as_uint(size + __uint_as_float(kAnchor)) - kAnchor;
  } else {
    const uint32_t bits = __float_as_uint(size);
    const uint32_t rounded = bits + (1u << (kShift - 1)) - 1 + (bits >> kShift & 1);
    code = (rounded >> kShift) - (uint32_t(127 - C::kBias) << C::kMantissa);
  }
  return {static_cast<uint8_t>(sign | code)};
}

#if TOKENMILL_HAS_FP8

template <typename C>
constexpr __nv_fp8_interpretation_t kKind =
    std::is_same_v<C, E4M3> ? __NV_E4M3 : __NV_E5M2;

template <typename C>
__device__ __forceinline__ float to_float(C code) {
  if constexpr (kIsFp8<C>)
    return __half2float(__half(__nv_cvt_fp8_to_halfraw(code.bits, kKind<C>)));
  else return static_cast<float>(code);
}

template <typename C>
__device__ __forceinline__ C narrow(float value) {
  return {__nv_cvt_float_to_fp8(value, __NV_SATFINITE, kKind<C>)};
}

// Converts two of a word's four codes into adjacent elements of a fragment.
template <typename T, typename C, int FIRST, int SECOND>
__device__ __forceinline__ uint32_t widen(uint32_t word) {
  const uint32_t codes = __byte_perm(word, 0, 0x4400 | SECOND << 4 | FIRST);
  const auto pair = static_cast<__nv_fp8x2_storage_t>(codes);
  const __half2 halves(__nv_cvt_fp8x2_to_halfraw2(pair, kKind<C>));
  if constexpr (std::is_same_v<T, Half>) return reinterpret_cast<const uint32_t&>(halves);
  else return bfloat16s_of(reinterpret_cast<const uint32_t&>(halves));
}

#else

template <typename C>
__device__ __forceinline__ float to_float(C value) {
  if constexpr (kIsFp8<C>) return to_float_by_arithmetic(value);
  else return static_cast<float>(value);
}

template <typename C>
__device__ __forceinline__ C narrow(float value) {
  return narrow_by_arithmetic<C>(value);
}

// An E5M2 code is the upper byte of a half. An E4M3 code is shifted by one bit more, and the result
// is too small by the difference of the biases; NaN is then just above the largest number.
template <typename T, typename C, int FIRST, int SECOND>
__device__ __forceinline__ uint32_t widen(uint32_t word) {
  uint32_t halves = __byte_perm(word, 0, 0x0404 | SECOND << 12 | FIRST << 4);
  if constexpr (std::is_same_v<C, E4M3>) {
    constexpr uint32_t k256 = 0x5c005c00, k448 = 0x5f005f00;
    const uint32_t size = multiply_halves(halves >> 1 & 0x3f803f80, k256);
    halves = (halves & 0x80008000) | size | (mask_of_greater(size, k448) & 0x7fff7fff);
  }
  if constexpr (std::is_same_v<T, Half>) return halves;
  else return bfloat16s_of(halves);
}

#endif

}  // namespace tokenmill

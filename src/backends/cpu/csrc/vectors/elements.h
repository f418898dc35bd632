// Loads and stores registers of floats from and to either element type, float or bfloat16.
#pragma once

#include <type_traits>

#include "vectors/wide.h"

namespace tokenmill {
namespace {

TM_INLINE Floats load_as_floats(const float* at) { return load_vector<Floats>(at); }
TM_INLINE Floats load_as_floats(const uint16_t* at) { return floats_from_bf16(at); }
TM_INLINE void store_floats(float* at, Floats value) { store_vector(at, value); }
TM_INLINE void store_floats(uint16_t* at, Floats value) { store_bf16(at, value); }

// Rounds to the precision of bfloat16.
TM_INLINE Floats rounded(Floats value) {
  const Words bits = (Words)value;
  return (Floats)((bits + 0x7fffu + ((bits >> 16) & 1u)) & 0xffff0000u);
}

// Calls body(load, store) for `count` elements, register by register. The last elements, if fewer
// than a register, are copied to and from a buffer, so that memory beyond them is not touched.
template <class Body>
TM_INLINE void for_registers(int64_t count, Body body) {
  int64_t at = 0;
  for (; at + TM_WIDTH <= count; at += TM_WIDTH) {
    body([at](const auto* from) { return load_as_floats(from + at); },
         [at](auto* to, Floats value) { store_floats(to + at, value); });
  }
  if (at == count) return;
  const int64_t left = count - at;
  body(
      [=](const auto* from) {
        std::remove_const_t<std::remove_pointer_t<decltype(from)>> part[TM_WIDTH] = {};
        std::memcpy(part, from + at, left * sizeof(part[0]));
        return load_as_floats(part);
      },
      [=](auto* to, Floats value) {
        std::remove_pointer_t<decltype(to)> part[TM_WIDTH];
        store_floats(part, value);
        std::memcpy(to + at, part, left * sizeof(part[0]));
      });
}

}  // namespace
}  // namespace tokenmill

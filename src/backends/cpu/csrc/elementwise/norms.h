// RMS norm, for any instruction set.
#pragma once

#include <cmath>

#include "elementwise/elementwise.h"
#include "vectors/elements.h"

namespace tokenmill {
namespace {

TM_INLINE float sum_of_parts(Floats value) {
  Lanes lanes = splat(0.0f);
  lanes.part[0] = value;
  return sum_of(lanes);
}

template <class Number>
float squares_of(const Number* x, int64_t size) {
  Floats squares = {};
  for_registers(size, [&](auto load, auto) {
    const Floats value = load(x);
    squares += value * value;
  });
  return sum_of_parts(squares);
}

template <class Number>
void rms_norm_rows(const RmsNormCall& call, int64_t begin, int64_t end) {
  constexpr bool kIsRounded = sizeof(Number) == 2;
  for (int64_t row = begin; row < end; row++) {
    const Number* x = static_cast<const Number*>(call.x) + row * call.x_stride;
    Number* out = static_cast<Number*>(call.out) + row * call.out_stride;
    const float mean = call.mean_square != nullptr
                           ? *call.mean_square
                           : squares_of(x, call.size) / static_cast<float>(call.size);
    const float factor = 1.0f / std::sqrt(mean + call.eps);
    for_registers(call.size, [&](auto load, auto store) {
      Floats value = load(x) * factor;
      if (kIsRounded && !call.float32_norm) value = rounded(value);
      value *= load(call.weight);
      store(out, call.add_to_out ? value + load(out) : value);
    });
  }
}

}  // namespace
}  // namespace tokenmill

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

float squares_of(const uint16_t* x, int64_t size) {
  Floats squares = {};
  for_registers(size, [&](auto load, auto) {
    const Floats value = load(x);
    squares += value * value;
  });
  return sum_of_parts(squares);
}

void rms_norm_rows(const RmsNormCall& call, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; row++) {
    const uint16_t* x = static_cast<const uint16_t*>(call.x) + row * call.x_stride;
    uint16_t* out = static_cast<uint16_t*>(call.out) + row * call.out_stride;
    const float mean = call.mean_square != nullptr
                           ? *call.mean_square
                           : squares_of(x, call.size) / static_cast<float>(call.size);
    const float factor = 1.0f / std::sqrt(mean + call.eps);
    for_registers(call.size, [&](auto load, auto store) {
      Floats value = load(x) * factor;
      if (!call.float32_norm) value = rounded(value);
      value *= load(call.weight);
      store(out, call.add_to_out ? value + load(out) : value);
    });
  }
}

}  // namespace
}  // namespace tokenmill

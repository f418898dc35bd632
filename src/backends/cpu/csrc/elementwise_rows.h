// Norms and activations, for any instruction set.
#pragma once

#include <cmath>
#include <type_traits>

#include "elementwise_kernels.h"
#include "elements.h"

namespace tokenmill {
namespace {

TM_INLINE float sum_of_parts(Floats value) {
  Lanes lanes = splat(0.0f);
  lanes.part[0] = value;
  return sum_of(lanes);
}

template <class Number>
void rms_norm_rows(const RmsNormCall& call, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; row++) {
    Number* x = static_cast<Number*>(call.x) + row * call.x_stride;
    const Number* delta = static_cast<const Number*>(call.delta) + row * call.delta_stride;
    Number* out = static_cast<Number*>(call.out) + row * call.out_stride;
    Floats squares = {};
    for_registers(call.size, [&](auto load, auto store) {
      Floats value = load(x);
      if (call.delta != nullptr) {
        value = rounded<Number>(value + load(delta));
        store(x, value);
      }
      squares += value * value;
    });
    const float factor =
        1.0f / std::sqrt(sum_of_parts(squares) / static_cast<float>(call.size) + call.eps);
    for_registers(call.size, [&](auto load, auto store) {
      store(out, rounded<Number>(load(x) * factor) * load(call.weight));
    });
  }
}

// erf by a ratio of polynomials, to a few ulp (Eigen's approximation for float); beyond the limit
// it is 1 in float.
TM_INLINE Floats erf_of(Floats x) {
  const Floats limit = Floats{} + 3.832506856900711f, one = Floats{} + 1.0f;
  const Floats beyond = x > limit ? one : x < -limit ? -one : Floats{};
  x = x > limit ? limit : x;
  x = x < -limit ? -limit : x;
  const Floats z = x * x;
  Floats p = Floats{} - 2.72614225801306e-10f;
  p = p * z + 2.77068142495902e-08f;
  p = p * z - 2.10102402082508e-06f;
  p = p * z - 5.69250639462346e-05f;
  p = p * z - 7.34990630326855e-04f;
  p = p * z - 2.95459980854025e-03f;
  p = p * z - 1.60960333262415e-02f;
  Floats q = Floats{} - 1.45660718464996e-05f;
  q = q * z - 2.13374055278905e-04f;
  q = q * z - 1.68282697438203e-03f;
  q = q * z - 7.37332916720468e-03f;
  q = q * z - 1.42647390514189e-02f;
  return beyond != 0.0f ? beyond : x * p / q;
}

template <Activation kActivation>
TM_INLINE Floats activation_of(Floats x) {
  if constexpr (kActivation == Activation::kSilu) return silu(x);
  if constexpr (kActivation == Activation::kGelu)
    return 0.5f * x * (1.0f + erf_of(x * 0.707106781f));
  return 0.5f * x * (1.0f + tanh_of(0.797884561f * (x + 0.044715f * x * x * x)));
}

template <class Number, Activation kActivation>
void activate_rows_by(const ActivateCall& call, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; row++) {
    const Number* gate = static_cast<const Number*>(call.gate) + row * call.stride;
    const Number* up = static_cast<const Number*>(call.up) + row * call.stride;
    Number* out = static_cast<Number*>(call.out) + row * call.out_stride;
    for_registers(call.size, [&](auto load, auto store) {
      store(out, rounded<Number>(activation_of<kActivation>(load(gate))) * load(up));
    });
  }
}

template <class Number>
void activate_rows(const ActivateCall& call, int64_t begin, int64_t end) {
  switch (call.activation) {
    case Activation::kSilu:
      return activate_rows_by<Number, Activation::kSilu>(call, begin, end);
    case Activation::kGelu:
      return activate_rows_by<Number, Activation::kGelu>(call, begin, end);
    case Activation::kGeluTanh:
      return activate_rows_by<Number, Activation::kGeluTanh>(call, begin, end);
  }
}

}  // namespace
}  // namespace tokenmill

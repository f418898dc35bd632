// The clamped gate of experts, for any instruction set.
#pragma once

#include "elementwise/elementwise.h"
#include "vectors/elements.h"

namespace tokenmill {
namespace {

struct GateAndUp {
  Floats gate, up;
};

template <class Number>
TM_INLINE GateAndUp load_gate_and_up(const ClampedGateCall& call, const Number* both, int64_t at) {
  if (!call.is_interleaved) return {load_as_floats(both + at), load_as_floats(both + call.size + at)};
  if constexpr (sizeof(Number) == 4) {
    GateAndUp x;
    for (int i = 0; i < TM_WIDTH; i++) x.gate[i] = both[2 * (at + i)], x.up[i] = both[2 * (at + i) + 1];
    return x;
  }
  // The lower half of a word is its first number.
  const Words pairs = load_vector<Words>(both + 2 * at);
  return {(Floats)(pairs << 16), (Floats)(pairs & 0xffff0000u)};
}

// NaN stays NaN.
TM_INLINE Floats at_most(Floats x, float limit) {
  const Floats limits = Floats{} + limit;
  return x > limits ? limits : x;
}

template <class Number>
void clamped_gate_rows(const ClampedGateCall& call, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; row++) {
    const Number* both = static_cast<const Number*>(call.both) + row * 2 * call.size;
    Number* out = static_cast<Number*>(call.out) + row * call.size;
    for (int64_t at = 0; at < call.size; at += TM_WIDTH) {
      GateAndUp x = load_gate_and_up(call, both, at);
      x.gate = at_most(x.gate, call.limit);
      x.up = -at_most(-at_most(x.up, call.limit), call.limit);
      store_floats(out + at, (x.up + 1.0f) * x.gate / (1.0f + exp_of(x.gate * -call.alpha)));
    }
  }
}

}  // namespace
}  // namespace tokenmill

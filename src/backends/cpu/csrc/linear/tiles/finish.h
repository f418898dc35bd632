// Finishes a product's sums and writes them: bias, activation, residual, rounding. The same code
// serves all instruction sets.
#pragma once

#include "linear/tiles/kernels.h"
#include "vectors/elements.h"

namespace tokenmill {
namespace {

TM_INLINE Floats activated(Activation activation, Floats x) {
  return activation == Activation::kSilu ? silu(x) : gelu(x);
}

template <bool kGateUp, class Out>
TM_INLINE void finish_row(const FinishCall& call, const float* sums, Out* out) {
  const auto value_at = [&](int column) __attribute__((always_inline)) {
    const Floats sum = load_vector<Floats>(sums + column);
    return call.bias == nullptr ? sum : sum + load_vector<Floats>(call.bias + column);
  };
  constexpr int kColumns = kGateUp ? kLaneRows : kPanelRows;
  TM_UNROLL for (int column = 0; column < kColumns; column += TM_WIDTH) {
    Floats value = value_at(column);
    if (kGateUp) value = activated(call.activation, value) * value_at(column + kLaneRows);
    if (call.add_to_out) value += load_as_floats(out + column);
    store_floats(out + column, value);
  }
}

template <bool kGateUp, class Out>
void finish_rows(const FinishCall& call) {
  const bool whole = call.columns == (kGateUp ? kLaneRows : kPanelRows);
  for (int64_t row = 0; row < call.rows; row++) {
    Out* out = static_cast<Out*>(call.out) + row * call.out_stride;
    const float* sums = call.sums + row * kPanelRows;
    if (whole) {
      finish_row<kGateUp>(call, sums, out);
      continue;
    }
    // At the right edge a row is finished in a buffer, so that memory beyond it is not touched.
    alignas(64) Out edge[kPanelRows] = {};
    std::memcpy(edge, out, call.columns * sizeof(Out));
    finish_row<kGateUp>(call, sums, edge);
    std::memcpy(out, edge, call.columns * sizeof(Out));
  }
}

inline void finish(const FinishCall& call) {
  if (call.out_type == Element::kF32) {
    return call.gate_up ? finish_rows<true, float>(call) : finish_rows<false, float>(call);
  }
  return call.gate_up ? finish_rows<true, uint16_t>(call) : finish_rows<false, uint16_t>(call);
}

}  // namespace
}  // namespace tokenmill

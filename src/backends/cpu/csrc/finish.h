// What happens to a product's sums before they are written; the same code for all instruction sets.
#pragma once

#include "instruction_sets.h"
#include "lanes.h"

namespace tokenmill {
namespace {

TM_INLINE Floats load_out(const FinishCall& call, const void* at) {
  return call.out_type == Element::kF32 ? load_vector<Floats>(static_cast<const float*>(at))
                                        : floats_from_bf16(static_cast<const uint16_t*>(at));
}

TM_INLINE void store_out(const FinishCall& call, void* at, Floats value) {
  if (call.out_type == Element::kF32) {
    store_vector(static_cast<float*>(at), value);
  } else {
    store_bf16(static_cast<uint16_t*>(at), value);
  }
}

TM_INLINE void finish_row(const FinishCall& call, const float* sums, char* out, int64_t size) {
  const auto value_at = [&](int column) __attribute__((always_inline)) {
    const Floats sum = load_vector<Floats>(sums + column);
    return call.bias == nullptr ? sum : sum + load_vector<Floats>(call.bias + column);
  };
  const int columns = call.gate_up ? kLaneRows : kPanelRows;
  for (int column = 0; column < columns; column += TM_WIDTH) {
    Floats value = value_at(column);
    if (call.gate_up) value = silu(value) * value_at(column + kLaneRows);
    if (call.add_to_out) value += load_out(call, out + column * size);
    store_out(call, out + column * size, value);
  }
}

// At the right edge a row is finished beside, so that nothing beyond it is touched.
inline void finish_edge_row(const FinishCall& call, const float* sums, char* out, int64_t size) {
  alignas(64) char beside[kPanelRows * sizeof(float)] = {};
  std::memcpy(beside, out, call.columns * size);
  finish_row(call, sums, beside, size);
  std::memcpy(out, beside, call.columns * size);
}

inline void finish(const FinishCall& call) {
  const int64_t size = call.out_type == Element::kF32 ? 4 : 2;
  const bool whole = call.columns == (call.gate_up ? kLaneRows : kPanelRows);
  for (int64_t row = 0; row < call.rows; row++) {
    char* out = static_cast<char*>(call.out) + row * call.out_stride * size;
    if (whole) {
      finish_row(call, call.sums + row * kPanelRows, out, size);
    } else {
      finish_edge_row(call, call.sums + row * kPanelRows, out, size);
    }
  }
}

inline void widen(const uint16_t* bf16, int64_t count, float* out) {
  int64_t i = 0;
  for (; i + TM_WIDTH <= count; i += TM_WIDTH) store_vector(out + i, floats_from_bf16(bf16 + i));
  for (; i < count; i++) {
    const uint32_t bits = static_cast<uint32_t>(bf16[i]) << 16;
    std::memcpy(out + i, &bits, sizeof(bits));
  }
}

TM_INLINE float sum_of_lanes(Floats lanes) {
  float sum = 0;
  TM_UNROLL for (int i = 0; i < TM_WIDTH; i++) sum += lanes[i];
  return sum;
}

inline void sum_float_blocks(const void* x, int64_t count, float* sums) {
  const auto* values = static_cast<const float*>(x);
  for (int64_t block = 0; block < count / kBlock; block++) {
    Floats sum = {};
    TM_UNROLL for (int i = 0; i < kBlock; i += TM_WIDTH)
      sum += load_vector<Floats>(values + block * kBlock + i);
    sums[block] = sum_of_lanes(sum);
  }
}

}  // namespace
}  // namespace tokenmill

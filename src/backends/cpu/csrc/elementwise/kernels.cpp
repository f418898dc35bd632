// The functions of elementwise.h for the instruction set that this library is compiled for.
#include "elementwise/gates.h"
#include "elementwise/norms.h"
#include "elementwise/rotation.h"
#include "linear/rows.h"

namespace tokenmill {

void rms_norm(const RmsNormCall& call, int64_t row_begin, int64_t row_end) {
  rms_norm_rows(call, row_begin, row_end);
}

float sum_of_squares(const void* x, int64_t size) {
  return squares_of(static_cast<const uint16_t*>(x), size);
}

void embed(const EmbedCall& call, int64_t row_begin, int64_t row_end) {
  for (int64_t row = row_begin; row < row_end; row++) {
    const auto* table = static_cast<const uint16_t*>(call.embedding.table);
    auto* out = static_cast<uint16_t*>(call.out) + row * call.out_stride;
    if (table == nullptr) read_row(*call.embedding.packed, call.token_ids[row], out, Element::kBF16);
    const uint16_t* from = table == nullptr ? out : table + call.token_ids[row] * call.size;
    for_registers(call.size, [&](auto load, auto store) { store(out, load(from) * call.scale); });
  }
}

namespace {

template <class Out>
void add_weighted_rows_to(const WeightedRowsCall& call, Out* out) {
  const auto* x = static_cast<const uint16_t*>(call.x);
  for_registers(call.size, [&](auto load, auto store) {
    Floats sum = {};
    for (int64_t i = 0; i < call.count; i++)
      if (call.rows[i] >= 0) sum += load(x + call.rows[i] * call.size) * call.weights[i];
    store(out, call.add_to_out ? sum + load(out) : sum);
  });
}

}  // namespace

void add_weighted_rows(const WeightedRowsCall& call) {
  if (call.out_type == Element::kF32) {
    add_weighted_rows_to(call, static_cast<float*>(call.out));
  } else {
    add_weighted_rows_to(call, static_cast<uint16_t*>(call.out));
  }
}

void clamped_gate(const ClampedGateCall& call, int64_t row_begin, int64_t row_end) {
  clamped_gate_rows(call, row_begin, row_end);
}

void rotate_and_write(const RotateAndWriteCall& call, int64_t begin, int64_t end) {
  if (call.spec.element == Element::kF32) {
    rotate_and_write_tokens<float>(call, begin, end);
  } else {
    rotate_and_write_tokens<uint16_t>(call, begin, end);
  }
}

}  // namespace tokenmill

// The functions of elementwise.h for the instruction set that this library is compiled for.
#include "elementwise/gates.h"
#include "elementwise/norms.h"
#include "elementwise/rotation.h"
#include "linear/packed/rows.h"

namespace tokenmill {
namespace {

// Calls function(number), where the type of `number` is that of an element.
template <class Function>
auto with_number(Element element, Function&& function) {
  return element == Element::kF32 ? function(float{}) : function(uint16_t{});
}

}  // namespace

void rms_norm(const RmsNormCall& call, int64_t row_begin, int64_t row_end) {
  with_number(call.element,
              [&](auto number) { rms_norm_rows<decltype(number)>(call, row_begin, row_end); });
}

float sum_of_squares(Element element, const void* x, int64_t size) {
  return with_number(element, [&](auto number) {
    return squares_of(static_cast<const decltype(number)*>(x), size);
  });
}

namespace {

template <class Number>
void embed_rows(const EmbedCall& call, int64_t row_begin, int64_t row_end) {
  const auto* table = static_cast<const Number*>(call.embedding.table);
  for (int64_t row = row_begin; row < row_end; row++) {
    auto* out = static_cast<Number*>(call.out) + row * call.out_stride;
    if (table == nullptr) read_row(*call.embedding.packed, call.token_ids[row], out, call.element);
    const Number* from = table == nullptr ? out : table + call.token_ids[row] * call.size;
    for_registers(call.size, [&](auto load, auto store) { store(out, load(from) * call.scale); });
  }
}

template <class Number, class Out>
void add_weighted_rows_to(const WeightedRowsCall& call, const Number* x, Out* out) {
  for_registers(call.size, [&](auto load, auto store) {
    Floats sum = {};
    for (int64_t i = 0; i < call.count; i++)
      if (call.rows[i] >= 0) sum += load(x + call.rows[i] * call.size) * call.weights[i];
    store(out, call.add_to_out ? sum + load(out) : sum);
  });
}

}  // namespace

void embed(const EmbedCall& call, int64_t row_begin, int64_t row_end) {
  with_number(call.element,
              [&](auto number) { embed_rows<decltype(number)>(call, row_begin, row_end); });
}

void add_weighted_rows(const WeightedRowsCall& call) {
  with_number(call.element, [&](auto from) {
    with_number(call.out_type, [&](auto to) {
      add_weighted_rows_to(call, static_cast<const decltype(from)*>(call.x),
                           static_cast<decltype(to)*>(call.out));
    });
  });
}

void clamped_gate(const ClampedGateCall& call, int64_t row_begin, int64_t row_end) {
  with_number(call.element,
              [&](auto number) { clamped_gate_rows<decltype(number)>(call, row_begin, row_end); });
}

void rotate_and_write(const RotateAndWriteCall& call, int64_t begin, int64_t end) {
  with_number(call.spec.element,
              [&](auto number) { rotate_and_write_tokens<decltype(number)>(call, begin, end); });
}

}  // namespace tokenmill

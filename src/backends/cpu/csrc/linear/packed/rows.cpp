#include "linear/packed/rows.h"

#include <cstring>

#include "formats/sources.h"
#include "linear/packed/tables.h"

namespace tokenmill {
namespace {

float float_from_bf16(uint16_t half) {
  const uint32_t bits = static_cast<uint32_t>(half) << 16;
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

// Rounds to the nearest, ties to even. NaN becomes the NaN that torch writes.
uint16_t bf16_from_float(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  const auto rounded = static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
  return (bits & 0x7fffffff) > 0x7f800000 ? 0x7fc0 : rounded;
}

void store(float value, float* out) { *out = value; }
void store(float value, uint16_t* out) { *out = bf16_from_float(value); }

// The bits of four numbers that line `line` has, in lines with `bits` bits of each number.
uint32_t four_at(const uint8_t* lines, int bits, unsigned line) {
  uint32_t word;
  std::memcpy(&word, lines + line * bits / 8 * kLineBytes, 4);
  return word >> line * bits % 8 & ((1u << bits) - 1u) * 0x01010101u;
}

// Reads 32 numbers of one row: `lines` are the row's bytes of the first line.
void read_numbers(const uint8_t* lines, const Sizes& sizes, uint8_t* numbers) {
  const int low = sizes.low_bits(), high = sizes.bits - low;
  for (unsigned line = 0; line < kBlock / 4; line++) {
    uint32_t four = four_at(lines, low, line);
    if (high > 0) four |= four_at(lines + low * kLineBytes, high, line) << low;
    std::memcpy(numbers + line * 4, &four, 4);
  }
}

// Reads one row of a step: the counterpart of write_step in packing.cpp.
void read_step(const uint8_t* step, Layout layout, int place, StepRow* row) {
  const Sizes& sizes = sizes_of(layout);
  const int factors = sizes.has_minimum ? 2 : 1, groups = kBlock / sizes.group;
  const uint8_t* at = sizes.header_bytes > 0 ? step : step + 2 * sizes.half_bytes();
  for (int i = 0; i < factors; i++)
    std::memcpy(&row->factors[i], at + (i * kPanelRows + place) * 2, 2);
  for (int b = 0; b < sizes.blocks(); b++) {
    const uint8_t* block = step + sizes.header_bytes + b * sizes.block_bytes();
    const uint8_t* lines = block + place / kLaneRows * sizes.half_bytes() + place % kLaneRows * 4;
    read_numbers(lines, sizes, row->numbers + b * kBlock);
    if (sizes.header_bytes == 0) continue;
    const uint8_t* scales = block + 2 * sizes.half_bytes() + place;
    for (int g = 0; g < groups; g++)
      row->scales[b * groups + g] = static_cast<int8_t>(scales[g * kPanelRows]);
    if (sizes.has_minimum && !has_nibble_scales(layout))
      row->minima[b] = static_cast<int8_t>(scales[kPanelRows]);
  }
}

// `number` turns a stored byte into its number.
template <class Out, class Number>
void write_group(const uint8_t* stored, int count, float scale, float minimum, Out* out,
                 Number&& number) {
  for (int i = 0; i < count; i++)
    store(scale * static_cast<float>(number(stored[i])) + minimum, out + i);
}

float factor_of(Layout layout, uint16_t half) {
  return layout == Layout::kE2M1 ? float_from_bf16(half) : float_from_fp16(half);
}

template <class Out>
void write_step(const StepRow& step, Layout layout, Out* out) {
  const Sizes& sizes = sizes_of(layout);
  const int8_t* table = table_of(layout);
  const int group = group_of(layout), zero = zero_of(layout);
  const bool is_super = sizes.header_bytes > 0;
  const float factor = factor_of(layout, step.factors[0]);
  const float of_minima = has_minimum(layout) ? float_from_fp16(step.factors[1]) : 0;
  for (int at = 0; at < sizes.step_inputs; at += group) {
    float scale = factor, minimum = of_minima;
    if (is_super) {
      const int own = step.scales[at / group];
      const bool has_both = has_nibble_scales(layout);
      scale *= has_both ? own & 15 : own;
      minimum *= has_both ? own >> 4 & 15 : step.minima[at / kBlock];
    }
    const auto write = [&](auto&& number) {
      write_group(step.numbers + at, group, scale, minimum, out + at, number);
    };
    if (table != nullptr) write([&](uint8_t stored) { return table[stored] - zero; });
    else if (is_signed(layout)) write([](uint8_t stored) { return static_cast<int8_t>(stored); });
    else write([&](uint8_t stored) { return stored - zero; });
  }
}

// Writes the numbers of a step in floating point: one, or two bfloat16.
template <class Out>
void write_floats(const uint8_t* stored, Layout layout, Out* out) {
  if (layout == Layout::kF16) {
    uint16_t half;
    std::memcpy(&half, stored, 2);
    return store(float_from_fp16(half), out);
  }
  float value;
  std::memcpy(&value, stored, 4);
  if (layout == Layout::kF32) return store(value, out);
  uint16_t pair[2];
  std::memcpy(pair, stored, 4);
  for (int i = 0; i < 2; i++) store(float_from_bf16(pair[i]), out + i);
}

template <class Out>
void read_row_as(const PackedLinear& weights, int64_t row, Out* out) {
  const Layout layout = weights.layout;
  const Sizes& sizes = sizes_of(layout);
  const auto place = static_cast<int>(row % kPanelRows);
  const uint8_t* step = weights.data + row / kPanelRows * panel_bytes(weights);
  StepRow quantized = {};
  for (int64_t i = 0; i < weights.k; i += sizes.step_inputs, step += sizes.step_bytes()) {
    if (is_quantized(layout)) {
      read_step(step, layout, place, &quantized);
      write_step(quantized, layout, out + i);
    } else {
      write_floats(step + place * sizes.step_bytes() / kPanelRows, layout, out + i);
    }
  }
}

}  // namespace

void read_row(const PackedLinear& weights, int64_t row, void* out, Element out_type) {
  if (out_type == Element::kF32) read_row_as(weights, row, static_cast<float*>(out));
  else read_row_as(weights, row, static_cast<uint16_t*>(out));
}

}  // namespace tokenmill

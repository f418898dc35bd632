#include "linear/packed/packing.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "linear/packed/tables.h"
#include "threads/thread_pool.h"

namespace tokenmill {
namespace {

// The row of the matrix at a place of a panel; n or more if the place is padding.
int64_t row_at(const PackedLinear& weights, int64_t panel, int place) {
  if (!weights.gate_up) return panel * kPanelRows + place;
  const int64_t half = weights.n / 2;
  const int64_t row = panel * kLaneRows + place % kLaneRows;
  if (row >= half) return weights.n;
  return place < kLaneRows ? row : half + row;
}

const uint8_t* source_row(const PackedLinear& weights, const WeightRows& source, int64_t row) {
  const int64_t half = weights.n / 2;
  if (weights.gate_up && row >= half) return source.up_rows + (row - half) * source.row_bytes;
  return source.rows + row * source.row_bytes;
}

// The bytes of a panel's row in the lines of a block.
uint8_t* lines_of(uint8_t* block, const Sizes& sizes, int place) {
  return block + place / kLaneRows * sizes.half_bytes() + place % kLaneRows * 4;
}

// The place of line `line` in memory, where a line has `bits` bits of each number.
struct Place {
  int64_t bytes;
  int shift;
};
Place place_of(int bits, unsigned line) {
  return {line * bits / 8 * kLineBytes, static_cast<int>(line * bits % 8)};
}

void add_bits(uint32_t four, int bits, unsigned line, uint8_t* lines) {
  const Place at = place_of(bits, line);
  uint32_t word;
  std::memcpy(&word, lines + at.bytes, 4);
  word |= (four & ((1u << bits) - 1u) * 0x01010101u) << at.shift;
  std::memcpy(lines + at.bytes, &word, 4);
}

int bits_at(const uint8_t* lines, int bits, int input) {
  const Place at = place_of(bits, input / 4);
  return lines[at.bytes + input % 4] >> at.shift & ((1 << bits) - 1);
}

// Writes 32 numbers of one row: `lines` are the row's bytes of the first line.
void write_numbers(const uint8_t* numbers, const Sizes& sizes, uint8_t* lines) {
  const int low = sizes.low_bits(), high = sizes.bits - low;
  for (unsigned line = 0; line < 8; line++) {
    uint32_t four;
    std::memcpy(&four, numbers + line * 4, 4);
    add_bits(four, low, line, lines);
    if (high > 0) add_bits(four >> low, high, line, lines + low * kLineBytes);
  }
}

int read_number(const uint8_t* lines, Layout layout, int input) {
  const Sizes& sizes = sizes_of(layout);
  const int low = sizes.low_bits(), high = sizes.bits - low;
  int number = bits_at(lines, low, input);
  if (high > 0) number |= bits_at(lines + low * kLineBytes, high, input) << low;
  if (table_of(layout) != nullptr) return table_of(layout)[number] - sizes.zero;
  return sizes.bits == 8 ? static_cast<int8_t>(number) : number - sizes.zero;
}

void write_step(const StepRow& row, Layout layout, int place, uint8_t* step) {
  const Sizes& sizes = sizes_of(layout);
  const int factors = sizes.has_minimum ? 2 : 1, groups = kBlock / sizes.group;
  // Without a header, a block ends with the factors.
  uint8_t* at = sizes.header_bytes > 0 ? step : step + 2 * sizes.half_bytes();
  for (int i = 0; i < factors; i++)
    std::memcpy(at + (i * kPanelRows + place) * 2, &row.factors[i], 2);
  for (int b = 0; b < sizes.blocks(); b++) {
    uint8_t* block = step + sizes.header_bytes + b * sizes.block_bytes();
    write_numbers(row.numbers + b * kBlock, sizes, lines_of(block, sizes, place));
    if (sizes.header_bytes == 0) continue;
    uint8_t* scales = block + 2 * sizes.half_bytes() + place;
    for (int g = 0; g < groups; g++) scales[g * kPanelRows] = row.scales[b * groups + g];
    if (sizes.has_minimum && !has_nibble_scales(layout)) scales[kPanelRows] = row.minima[b];
  }
}

void pack_quantized_row(const PackedLinear& weights, Source source, const uint8_t* row, int place,
                        uint8_t* panel) {
  const Sizes& sizes = sizes_of(weights.layout);
  const int64_t from_bytes = sizes_of(source).step_bytes, to_bytes = sizes.step_bytes();
  StepRow step = {};
  for (int64_t i = 0; i < weights.k / sizes.step_inputs; i++) {
    read_step(source, row + i * from_bytes, &step);
    write_step(step, weights.layout, place, panel + i * to_bytes);
  }
}

// A step has kBytes of a row: one float or two bfloat16, or one number in half precision. Each line of
// the cache is read and written once: the panel is filled in pieces of a line per row.
template <int kBytes>
void pack_floats(const uint8_t* const* rows, int64_t row_bytes, uint8_t* panel) {
  for (int64_t begin = 0; begin < row_bytes; begin += kLineBytes) {
    const int64_t end = std::min(begin + kLineBytes, row_bytes);
    for (int place = 0; place < kPanelRows; place++) {
      if (rows[place] == nullptr) continue;
      for (int64_t at = begin; at < end; at += kBytes)
        std::memcpy(panel + at * kPanelRows + place * kBytes, rows[place] + at, kBytes);
    }
  }
}

void pack_panel(const PackedLinear& weights, const WeightRows& source, int64_t panel,
                uint8_t* out) {
  const uint8_t* rows[kPanelRows] = {};
  for (int place = 0; place < kPanelRows; place++) {
    const int64_t row = row_at(weights, panel, place);
    if (row < weights.n) rows[place] = source_row(weights, source, row);
  }
  std::memset(out, 0, panel_bytes(weights));
  const int64_t row_bytes = panel_bytes(weights) / kPanelRows;
  if (weights.layout == Layout::kF16) return pack_floats<2>(rows, row_bytes, out);
  if (!is_quantized(weights.layout)) return pack_floats<4>(rows, row_bytes, out);
  for (int place = 0; place < kPanelRows; place++)
    if (rows[place] != nullptr)
      pack_quantized_row(weights, source.source, rows[place], place, out);
}

float float_from_bf16(const uint8_t* at) {
  uint16_t half;
  std::memcpy(&half, at, 2);
  const uint32_t bits = static_cast<uint32_t>(half) << 16;
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

float float_at(const uint8_t* at) {
  uint16_t half;
  std::memcpy(&half, at, 2);
  return float_from_fp16(half);
}

float quantized_value_at(Layout layout, const uint8_t* step, int place, int input) {
  const Sizes& sizes = sizes_of(layout);
  const uint8_t* block = step + sizes.header_bytes + input / kBlock * sizes.block_bytes();
  const uint8_t* lines = lines_of(const_cast<uint8_t*>(block), sizes, place);
  const int number = read_number(lines, layout, input % kBlock);
  const uint8_t* scales = block + 2 * sizes.half_bytes();
  const uint8_t* factors = sizes.header_bytes > 0 ? step : scales;
  const uint8_t* factor = factors + place * 2;
  float scale = layout == Layout::kE2M1 ? float_from_bf16(factor) : float_at(factor);
  float minimum = 0;
  if (has_minimum(layout)) minimum = float_at(factors + (kPanelRows + place) * 2);
  if (sizes.header_bytes > 0) {
    const int group = input % kBlock / group_of(layout);
    const auto own = static_cast<int8_t>(scales[group * kPanelRows + place]);
    const bool has_both = has_nibble_scales(layout);
    scale *= has_both ? own & 15 : own;
    minimum *= has_both ? own >> 4 & 15 : static_cast<int8_t>(scales[kPanelRows + place]);
  }
  return scale * static_cast<float>(number) + minimum;
}

float value_at(Layout layout, const uint8_t* step, int place, int input) {
  if (layout == Layout::kF16) return float_at(step + place * 2);
  if (layout == Layout::kBF16) return float_from_bf16(step + place * 4 + input * 2);
  if (layout != Layout::kF32) return quantized_value_at(layout, step, place, input);
  float value;
  std::memcpy(&value, step + place * 4, 4);
  return value;
}

template <class Function>
void for_each_panel(const PackedLinear& weights, Function&& function) {
  parallel([&](int worker, int workers) {
    const Share panels = share_of(num_panels(weights), worker, workers);
    for (int64_t panel = panels.begin; panel < panels.end; panel++) function(panel);
  });
}

}  // namespace

int64_t packed_bytes(const PackedLinear& weights) {
  return num_panels(weights) * panel_bytes(weights);
}

void pack(const PackedLinear& weights, const WeightRows& source, uint8_t* data) {
  if (sizes_of(source.source).layout != weights.layout)
    throw std::invalid_argument("weights of this source have another layout");
  for_each_panel(weights, [&](int64_t panel) {
    pack_panel(weights, source, panel, data + panel * panel_bytes(weights));
  });
}

void unpack(const PackedLinear& weights, float* out) {
  const Sizes& sizes = sizes_of(weights.layout);
  const int64_t step = sizes.step_bytes(), inputs = sizes.step_inputs;
  for_each_panel(weights, [&](int64_t panel) {
    const uint8_t* from = weights.data + panel * panel_bytes(weights);
    for (int place = 0; place < kPanelRows; place++) {
      const int64_t row = row_at(weights, panel, place);
      if (row >= weights.n) continue;
      for (int64_t i = 0; i < weights.k; i++)
        out[row * weights.k + i] =
            value_at(weights.layout, from + i / inputs * step, place, static_cast<int>(i % inputs));
    }
  });
}

}  // namespace tokenmill

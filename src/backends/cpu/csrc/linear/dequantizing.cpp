#include "linear/dequantizing.h"

#include <cstring>
#include <stdexcept>

#include "linear/tables.h"
#include "threads/thread_pool.h"

namespace tokenmill {
namespace {

// Rounds to the nearest, ties to even. Not a number stays that, as torch writes it.
uint16_t bf16_from_float(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  const auto rounded = static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
  return (bits & 0x7fffffff) > 0x7f800000 ? 0x7fc0 : rounded;
}

// `number` makes a number of what is stored.
template <class Number>
void write_group(const uint8_t* stored, int count, float scale, float minimum, uint16_t* out,
                 Number&& number) {
  for (int i = 0; i < count; i++)
    out[i] = bf16_from_float(scale * static_cast<float>(number(stored[i])) + minimum);
}

float factor_of(Layout layout, uint16_t half) {
  if (layout != Layout::kE2M1) return float_from_fp16(half);
  const uint32_t bits = static_cast<uint32_t>(half) << 16;  // a bfloat16
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

void write_step(const StepRow& step, Layout layout, uint16_t* out) {
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

}  // namespace

void dequantize(const WeightRows& source, int64_t n, int64_t k, uint16_t* out) {
  const SourceSizes from = sizes_of(source.source);
  if (!is_quantized(from.layout)) throw std::invalid_argument("not a quantized source");
  const int64_t inputs = sizes_of(from.layout).step_inputs;
  parallel([&](int worker, int workers) {
    StepRow step = {};
    const Share rows = share_of(n, worker, workers);
    for (int64_t row = rows.begin; row < rows.end; row++)
      for (int64_t i = 0; i < k / inputs; i++) {
        read_step(source.source, source.rows + row * source.row_bytes + i * from.step_bytes, &step);
        write_step(step, from.layout, out + row * k + i * inputs);
      }
  });
}

}  // namespace tokenmill

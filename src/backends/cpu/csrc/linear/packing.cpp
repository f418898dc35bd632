#include "linear/packing.h"

#include <cmath>
#include <cstring>

#include "threads/thread_pool.h"

namespace tokenmill {
namespace {

constexpr int64_t kScalesBytes = kPanelRows * 2;

bool is_nibbles(Format format) { return format == Format::kQ4_0 || format == Format::kQ4_1; }

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

// The nibble of (place, input): offset of its word in a panel's block, and its shift in the word.
struct Nibble {
  int64_t offset;
  int shift;
};
Nibble nibble_at(int place, int input) {
  const int lane = place % kLaneRows, half = place / kLaneRows;
  return {half * 256 + input / 8 * 64 + lane * 4 + input % 2 * 2, input % 8 / 2 * 4};
}
int64_t byte_at(int place, int input) {
  const int lane = place % kLaneRows, half = place / kLaneRows;
  return half * 512 + input / 2 * 32 + lane * 2 + input % 2;
}
int64_t scales_offset(Format format) { return is_nibbles(format) ? 512 : 1024; }

// Packs a GGUF block of Q4_0 or Q4_1: scale, minimum (Q4_1 only), 16 bytes. Inputs i and i + 16
// share byte i.
void pack_nibbles(const uint8_t* block, Format format, int place, uint8_t* out) {
  const bool has_minimum = format == Format::kQ4_1;
  const uint8_t* quants = block + (has_minimum ? 4 : 2);
  int values[kBlock];
  for (int i = 0; i < 16; i++) {
    values[i] = quants[i] & 15;
    values[i + 16] = quants[i] >> 4;
  }
  // A word holds every second one of eight inputs: see nibble_at.
  for (int first = 0; first < kBlock; first += first % 2 ? 7 : 1) {
    const int* v = values + first;
    const auto word = static_cast<uint16_t>(v[0] | v[2] << 4 | v[4] << 8 | v[6] << 12);
    std::memcpy(out + nibble_at(place, first).offset, &word, 2);
  }
  uint8_t* scales = out + scales_offset(format);
  std::memcpy(scales + place * 2, block, 2);
  if (has_minimum) std::memcpy(scales + kScalesBytes + place * 2, block + 2, 2);
}

// Packs a GGUF block of Q8_0: scale, 32 signed bytes.
void pack_bytes(const uint8_t* block, int place, uint8_t* out) {
  for (int input = 0; input < kBlock; input++) out[byte_at(place, input)] = block[2 + input];
  std::memcpy(out + scales_offset(Format::kQ8_0) + place * 2, block, 2);
}

void pack_row(const PackedLinear& weights, const uint8_t* row, int place, uint8_t* panel) {
  const Format format = weights.format;
  const int64_t step = step_bytes(format), steps = weights.k / step_inputs(format);
  if (!is_block_format(format)) {
    // A step has four bytes of a row: one float, or two bfloat16.
    for (int64_t i = 0; i < steps; i++) std::memcpy(panel + i * step + place * 4, row + i * 4, 4);
    return;
  }
  const int64_t block_bytes = step / kPanelRows;
  for (int64_t i = 0; i < steps; i++) {
    if (is_nibbles(format)) {
      pack_nibbles(row + i * block_bytes, format, place, panel + i * step);
    } else {
      pack_bytes(row + i * block_bytes, place, panel + i * step);
    }
  }
}

float float_from_bf16(const uint8_t* at) {
  uint16_t half;
  std::memcpy(&half, at, 2);
  const uint32_t bits = static_cast<uint32_t>(half) << 16;
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

float float_from_fp16(const uint8_t* at) {
  uint16_t half;
  std::memcpy(&half, at, 2);
  const int exponent = half >> 10 & 31, mantissa = half & 1023;
  const float sign = half & 0x8000 ? -1.0f : 1.0f;
  if (exponent == 31) return mantissa ? NAN : sign * INFINITY;
  const int significand = exponent == 0 ? mantissa : mantissa + 1024;
  return sign * std::ldexp(static_cast<float>(significand), (exponent == 0 ? 1 : exponent) - 25);
}

float value_at(Format format, const uint8_t* step, int place, int input) {
  if (format == Format::kBF16) return float_from_bf16(step + place * 4 + input * 2);
  if (format == Format::kF32) {
    float value;
    std::memcpy(&value, step + place * 4, 4);
    return value;
  }
  const uint8_t* scales = step + scales_offset(format);
  const float scale = float_from_fp16(scales + place * 2);
  if (format == Format::kQ8_0) return scale * static_cast<int8_t>(step[byte_at(place, input)]);
  const Nibble at = nibble_at(place, input);
  uint16_t word;
  std::memcpy(&word, step + at.offset, 2);
  const int value = word >> at.shift & 15;
  if (format == Format::kQ4_0) return scale * static_cast<float>(value - 8);
  return scale * static_cast<float>(value) + float_from_fp16(scales + kScalesBytes + place * 2);
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
  for_each_panel(weights, [&](int64_t panel) {
    uint8_t* out = data + panel * panel_bytes(weights);
    std::memset(out, 0, panel_bytes(weights));
    for (int place = 0; place < kPanelRows; place++) {
      const int64_t row = row_at(weights, panel, place);
      if (row < weights.n) pack_row(weights, source_row(weights, source, row), place, out);
    }
  });
}

void unpack(const PackedLinear& weights, float* out) {
  const int64_t step = step_bytes(weights.format), inputs = step_inputs(weights.format);
  for_each_panel(weights, [&](int64_t panel) {
    const uint8_t* from = weights.data + panel * panel_bytes(weights);
    for (int place = 0; place < kPanelRows; place++) {
      const int64_t row = row_at(weights, panel, place);
      if (row >= weights.n) continue;
      for (int64_t i = 0; i < weights.k; i++)
        out[row * weights.k + i] =
            value_at(weights.format, from + i / inputs * step, place, static_cast<int>(i % inputs));
    }
  });
}

}  // namespace tokenmill

// Reads weights in the formats of files.
#pragma once

#include "linear/linear.h"

namespace tokenmill {

// The format of a matrix before it is packed. packed_weights.py has the same list. Except floats
// these are GGUF's: https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h describes them.
enum class Source : int32_t {
  kF32 = 0,
  kBF16 = 1,
  kQ4_0 = 2,
  kQ4_1 = 3,
  kQ5_0 = 4,
  kQ5_1 = 5,
  kQ8_0 = 6,
  kIQ4_NL = 7,
  kMXFP4 = 8,
  kQ3_K = 9,
  kQ4_K = 10,
  kQ5_K = 11,
  kQ6_K = 12,
  kIQ4_XS = 13,
  kQ2_K = 14,
  kF16 = 15,
};
constexpr int kNumSources = 16;

// Layout that a source is packed to without loss, and the bytes of a step of one row.
struct SourceSizes {
  Layout layout;
  int64_t step_bytes;
};
constexpr SourceSizes sizes_of(Source source) {
  constexpr SourceSizes kTable[kNumSources] = {
      {Layout::kF32, 4},      {Layout::kBF16, 4},     {Layout::kBlocks4, 18},
      {Layout::kBlocks4, 20}, {Layout::kBlocks5, 22}, {Layout::kBlocks5, 24},
      {Layout::kBytes, 34},   {Layout::kIQ4, 18},     {Layout::kE2M1, 17},
      {Layout::kThree, 110},  {Layout::kSuper4, 144}, {Layout::kSuper5, 176},
      {Layout::kSix, 210},    {Layout::kSuperIQ4, 136}, {Layout::kTwo, 84},
      {Layout::kF16, 2},
  };
  return kTable[static_cast<int>(source)];
}

float float_from_fp16(uint16_t half);

// One row of a step, in the terms of its quantized layout (linear.h).
struct StepRow {
  uint8_t numbers[kSuperBlock];
  uint16_t factors[2];  // fp16 (kE2M1: bfloat16): scale and minimum, or the factors of the int8 ones
  int8_t scales[16];    // by group; in kTwo, the upper halves are minima
  int8_t minima[8];     // by block
};

// Reads a row of a step of a quantized source. Throws std::range_error if the layout cannot represent
// its numbers; only damaged files have such numbers.
void read_step(Source source, const uint8_t* from, StepRow* to);

}  // namespace tokenmill

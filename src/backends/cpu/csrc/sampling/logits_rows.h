// Reads rows of logits in one pass, for any instruction set.
#pragma once

#include <cmath>
#include <limits>

#include "sampling/logits.h"
#include "vectors/elements.h"

namespace tokenmill {
namespace {

// The pass keeps only the maximum of each lane. Afterwards only the block that contains the row's
// maximum is searched number by number.
constexpr int64_t kLogitsBlock = 1024;

TM_INLINE float largest_in(const float* at, int64_t count, Floats* zeros) {
  Floats best = Floats{} - std::numeric_limits<float>::infinity();
  int64_t i = 0;
  for (; i + TM_WIDTH <= count; i += TM_WIDTH) {
    const Floats value = load_vector<Floats>(at + i);
    best = value > best ? value : best;
    *zeros += value - value;  // 0, or NaN if the value is not finite
  }
  float found = best[0];
  for (int lane = 1; lane < TM_WIDTH; lane++) found = best[lane] > found ? best[lane] : found;
  for (; i < count; i++) {
    found = at[i] > found ? at[i] : found;
    (*zeros)[0] += at[i] - at[i];
  }
  return found;
}

void read_logits_rows(const LogitsCall& call, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; row++) {
    const float* logits = call.logits + row * call.size;
    float best = -std::numeric_limits<float>::infinity();
    int64_t at = 0;
    Floats zeros = {};
    for (int64_t block = 0; block < call.size; block += kLogitsBlock) {
      const int64_t left = call.size - block;
      const int64_t count = left < kLogitsBlock ? left : kLogitsBlock;
      const float found = largest_in(logits + block, count, &zeros);
      if (found > best) best = found, at = block;
    }
    while (at + 1 < call.size && !(logits[at] >= best)) at++;  // stays in range, even with NaN
    call.best[row] = at;
    bool is_finite = true;
    for (int lane = 0; lane < TM_WIDTH; lane++) is_finite &= zeros[lane] == 0.0f;
    call.is_finite[row] = is_finite;
  }
}

constexpr float kNever = -std::numeric_limits<float>::infinity();

// Masks 32 logits by the bits of a word. A compiler makes vectors of these loops only if the number
// of logits is a constant.
TM_INLINE void mask_32(float* logits, uint32_t bits) {
  Words lane_bits;
  for (int lane = 0; lane < TM_WIDTH; lane++) lane_bits[lane] = 1u << lane;
  TM_UNROLL
  for (int i = 0; i < 32; i += TM_WIDTH) {
    const Floats kept = load_vector<Floats>(logits + i);
    const Floats never = Floats{} + kNever;
    store_vector(logits + i, ((Words{} + (bits >> i)) & lane_bits) != 0 ? kept : never);
  }
}

TM_INLINE void forbid_32(float* logits) {
  TM_UNROLL
  for (int i = 0; i < 32; i += TM_WIDTH) store_vector(logits + i, Floats{} + kNever);
}

// Most words of a mask are all ones or all zeros.
void mask_logits_rows(const MaskCall& call, int64_t begin, int64_t end) {
  for (int64_t index = begin; index < end; index++) {
    float* logits = call.logits + call.rows[index] * call.size;
    const uint32_t* mask = call.masks + index * call.words;
    const int64_t whole = call.size / 32;
    for (int64_t word = 0; word < whole; word++) {
      if (mask[word] == 0) {
        forbid_32(logits + word * 32);
      } else if (mask[word] != ~0u) {
        mask_32(logits + word * 32, mask[word]);
      }
    }
    for (int64_t i = whole * 32; i < call.size; i++)
      if ((mask[whole] >> i % 32 & 1) == 0) logits[i] = kNever;
  }
}

}  // namespace
}  // namespace tokenmill

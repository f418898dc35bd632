// Reads rows of logits: finds the largest one, and checks that all are finite. Masks rows of them.
#pragma once

#include <cstdint>

namespace tokenmill {

struct LogitsCall {
  const float* logits;  // [rows, size]
  int64_t size;
  int64_t* best;       // [rows]: index of the largest, the first of equals; undefined with NaN
  uint8_t* is_finite;  // [rows]: 0 if the row has NaN or infinity
};
void read_logits(const LogitsCall& call, int64_t row_begin, int64_t row_end);

struct MaskCall {
  float* logits;  // [rows, size]
  int64_t size;
  const int64_t* rows;    // [masks]: the row of each mask
  const uint32_t* masks;  // [masks, words]: bit i % 32 of word i / 32 is 1 if logit i stays
  int64_t words;          // (size + 31) / 32
};
// Sets the other logits of these rows to -infinity.
void mask_logits(const MaskCall& call, int64_t mask_begin, int64_t mask_end);

}  // namespace tokenmill

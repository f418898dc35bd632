// Reads rows of logits: finds the largest one, and checks that all are finite.
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

}  // namespace tokenmill

// Reading rows of logits: where the best one is, and whether all are numbers.
#pragma once

#include <cstdint>

namespace tokenmill {

struct LogitsCall {
  const float* logits;  // [rows, size]
  int64_t size;
  int64_t* best;       // [rows]: of equals the lowest; means nothing in a row with NaN
  uint8_t* is_finite;  // [rows]: 0 where there is NaN or infinity
};
void read_logits(const LogitsCall& call, int64_t row_begin, int64_t row_end);

}  // namespace tokenmill

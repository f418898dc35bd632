// Rows of weights into panels and back; kernels.h tells the layouts.
#pragma once

#include "linear/linear.h"

namespace tokenmill {

// Where the rows of a matrix lie: float, bfloat16, or GGUF's blocks of the format packed to.
struct WeightRows {
  const uint8_t* rows;
  const uint8_t* up_rows;  // with gate_up: `rows` is gate; n / 2 rows each
  int64_t row_bytes;       // from one row to the next
};

// Bytes of `data`.
int64_t packed_bytes(const PackedLinear& weights);

// Writes packed_bytes to `weights.data`, in parallel; padding becomes zeros.
void pack(const PackedLinear& weights, const WeightRows& source, uint8_t* data);

// The weights as float [n, k], exactly; gate above up.
void unpack(const PackedLinear& weights, float* out);

}  // namespace tokenmill

// Packs rows of weights into panels, and unpacks them. linear.h describes the layouts.
#pragma once

#include "formats/sources.h"

namespace tokenmill {

// The rows of a matrix before it is packed. structures.py has the same layout.
struct WeightRows {
  const uint8_t* rows;
  const uint8_t* up_rows;  // with gate_up: `rows` is gate; n / 2 rows each
  int64_t row_bytes;       // from one row to the next
  Source source;
};

// Size of the packed weights, in bytes.
int64_t packed_bytes(const PackedLinear& weights);

// Packs the rows of `source` into `data` (packed_bytes), in parallel. Padding is zeros. Throws
// std::exception if the weights' layout is not that of the source, and as read_step.
void pack(const PackedLinear& weights, const WeightRows& source, uint8_t* data);

// Writes the weights as float [n, k], without rounding. Gate's rows come before up's.
void unpack(const PackedLinear& weights, float* out);

}  // namespace tokenmill

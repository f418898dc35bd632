// Reads single rows of packed weights, for an embedding.
#pragma once

#include "linear/linear.h"

namespace tokenmill {

// Writes a row of one matrix, without gate_up, as numbers [k] of type `out_type`. Each is computed in
// float, then rounded.
void read_row(const PackedLinear& weights, int64_t row, void* out, Element out_type);

}  // namespace tokenmill

// The inputs of a product in the form that its tiles read.
#pragma once

#include "linear/tiles/kernels.h"

namespace tokenmill {

struct PreparedInputs {
  const char* x;
  int64_t row_bytes;   // from row to row
  int64_t stride;      // the same in the units of TileCall
  int64_t step_bytes;  // of a row, for one step of the weights
  const float* group_sums;
  int64_t group_sums_stride;
  int64_t rests_at;
};

// Prepares rows [first_row, first_row + rows) in this thread's scratch memory, which the next call
// overwrites. The prepared row does not depend on other rows.
PreparedInputs prepare_inputs(const LinearCall& call, const TileSet& tiles, int64_t first_row,
                              int64_t rows);

}  // namespace tokenmill

// Turns rows of quantized weights into bfloat16, for an embedding, whose rows are looked up.
#pragma once

#include "linear/packing.h"

namespace tokenmill {

// Writes `n` rows of `k` quantized weights as bfloat16 [n, k], in parallel: each is computed in
// float, then rounded. Throws std::exception for sources in floating point, and as read_step.
void dequantize(const WeightRows& source, int64_t n, int64_t k, uint16_t* out);

}  // namespace tokenmill

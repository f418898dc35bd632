// Weights of a row of logits, relative to the likeliest token's weight, which is 1.
#pragma once

#include <cstdint>

namespace tokenmill {

// Tokens per block. To draw a token, first the sums of blocks are read, then the weights of one
// block.
constexpr int64_t kWeightsBlock = 256;

struct WeightedNumbers {
  int64_t size;
  float* weights;  // [size]
  double* sums;    // [blocks]
  float* largest;  // [blocks]
};

// weights = 2^((logits - best) * scale), within [0, 1]; 0 for NaN
struct WeighCall {
  const float* logits;  // [size]
  float best;
  float scale;  // log2(e) / temperature
  WeightedNumbers to;
};
void weigh_row(const WeighCall& call);

// weights = max(weights * scale - q, 0)
struct SubtractCall {
  const float* q;  // [size]
  float scale;
  WeightedNumbers to;
};
void subtract_row(const SubtractCall& call);

}  // namespace tokenmill

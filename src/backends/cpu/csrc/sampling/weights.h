// A row of logits as weights relative to that of the likeliest token, which is 1.
#pragma once

#include <cstdint>

namespace tokenmill {

// A row is read in blocks: only the one that holds the answer is looked at number by number.
constexpr int64_t kWeightsBlock = 256;

struct WeightedNumbers {
  int64_t size;
  float* weights;  // [size]
  double* sums;    // [blocks]
  float* largest;  // [blocks]
};

// weights = 2^((logits - best) * scale), within [0, 1]; 0 for what is not a number
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

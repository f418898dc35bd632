// The functions of weights.h, for any instruction set.
#pragma once

#include "sampling/weights.h"
#include "vectors/wide.h"

namespace tokenmill {
namespace {

typedef double Doubles __attribute__((vector_size(TM_WIDTH * 8)));

// Computes weights by `make(position, count)`, a register at a time, and writes each block's sum
// and largest weight. `count` is less than a register's width at the end of a row; the other lanes
// are ignored then.
template <class Make>
TM_INLINE void make_weights(int64_t size, float* weights, double* sums, float* largest, Make make) {
  for (int64_t block = 0, begin = 0; begin < size; block++, begin += kWeightsBlock) {
    const int64_t end = size - begin < kWeightsBlock ? size : begin + kWeightsBlock;
    // In double: next to a likely token, float would lose the weights of unlikely ones.
    Doubles block_sums = {};
    Floats block_largest = {};
    for (int64_t at = begin; at < end; at += TM_WIDTH) {
      const int64_t count = end - at < TM_WIDTH ? end - at : TM_WIDTH;
      Floats made = make(at, count);
      if (count < TM_WIDTH) {
        for (int lane = count; lane < TM_WIDTH; lane++) made[lane] = 0.0f;
        std::memcpy(weights + at, &made, count * sizeof(float));
      } else {
        store_vector(weights + at, made);
      }
      block_sums += __builtin_convertvector(made, Doubles);
      block_largest = made > block_largest ? made : block_largest;
    }
    double sum = 0.0;
    float most = 0.0f;
    for (int lane = 0; lane < TM_WIDTH; lane++) {
      sum += block_sums[lane];
      most = block_largest[lane] > most ? block_largest[lane] : most;
    }
    sums[block] = sum;
    largest[block] = most;
  }
}

TM_INLINE Floats load_some(const float* at, int64_t count, float beyond) {
  if (count == TM_WIDTH) return load_vector<Floats>(at);
  Floats value = Floats{} + beyond;
  std::memcpy(&value, at, count * sizeof(float));
  return value;
}

void weigh_logits(const WeighCall& call) {
  const WeightedNumbers& to = call.to;
  make_weights(to.size, to.weights, to.sums, to.largest, [&](int64_t at, int64_t count) {
    const Floats logits = load_some(call.logits + at, count, call.best);
    const Floats weight = exp2_of<6>((logits - call.best) * call.scale);
    // Clamped to [0, 1], because a row that is not finite may give any value, and
    // select_by_digits reads weights as numbers of that range.
    const Floats some = weight > Floats{} ? weight : Floats{};
    return some < Floats{} + 1.0f ? some : Floats{} + 1.0f;
  });
}

void subtract_weights(const SubtractCall& call) {
  const WeightedNumbers& to = call.to;
  make_weights(to.size, to.weights, to.sums, to.largest, [&](int64_t at, int64_t count) {
    const Floats rest =
        load_some(to.weights + at, count, 0.0f) * call.scale - load_some(call.q + at, count, 0.0f);
    return rest > Floats{} ? rest : Floats{};
  });
}

}  // namespace
}  // namespace tokenmill

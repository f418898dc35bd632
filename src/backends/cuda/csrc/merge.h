// Merges the partial results of split contexts.
#pragma once

#include "sequence.h"

namespace tokenmill {

constexpr int kMergedRows = 4;  // of a thread block, one per warp

// Grid: tiles of rows, KV heads, sequences.
template <typename T, int D>
__global__ void __launch_bounds__(kMergedRows * 32) merge_splits(AttentionCall call) {
  const Sequence sequence(call, blockIdx.z, blockIdx.y);
  const int row = blockIdx.x * kMergedRows + threadIdx.x / 32;
  if (row >= sequence.num_rows) return;
  const Split first(sequence, 0);
  if (first.count == 1) return;
  const int lane = threadIdx.x % 32;
  const int64_t place = first.place(sequence, row);
  const float* const stats = call.partial_stats + place * 2;

  float most = -INFINITY;
  for (int split = 0; split < first.count; ++split) most = fmaxf(most, stats[split * 2]);
  const float reference = most == -INFINITY ? 0.0f : most;
  float weight = 0;
  float out[(D + 31) / 32] = {};
  for (int split = 0; split < first.count; ++split) {
    const float scale = exp2f(stats[split * 2] - reference);
    const float* const sums = call.partial_sums + (place + split) * D;
    weight += stats[split * 2 + 1] * scale;
#pragma unroll
    for (int part = 0; part < (D + 31) / 32; ++part)
      if (part * 32 + lane < D) out[part] = fmaf(sums[part * 32 + lane], scale, out[part]);
  }
  T* const to = static_cast<T*>(call.out) + sequence.offset(row, call.out_stride);
#pragma unroll
  for (int part = 0; part < (D + 31) / 32; ++part)
    if (part * 32 + lane < D)
      to[part * 32 + lane] = from_float<T>(weight == 0 ? 0.0f : out[part] / weight);
}

}  // namespace tokenmill

// Attention for sequences with few rows, mostly decodes: limited by the bandwidth of keys and
// values. A thread block computes up to 16 rows of one KV head in one sequence, over a split of the
// context. A split is the whole context if there are enough sequences to fill the device, else a
// part of it (Flash-Decoding). Each warp reads its own tiles of keys, and loads the next tile
// meanwhile. The results of the warps are merged at the end.
#pragma once

#include "tensor_cores.h"

namespace tokenmill {

template <typename C, int D>
struct FewRows {
  static constexpr int kRows = 16;
  static constexpr int kKeys = 32 / sizeof(C);  // of a warp's tile: same bytes for every type
  static constexpr int kWarps = D <= 128 ? 4 : 2;
  static constexpr int kThreads = kWarps * 32;
  static constexpr int kTile = kKeys * kStride<C, D>;
  static constexpr int kTileBytes = kTile * sizeof(C);
  static constexpr int kQueryStride = kStride<Half, D>;
  static constexpr int kSharedBytes = kRows * kQueryStride * 2 + kWarps * 2 * 2 * kTileBytes;
  static_assert(kSharedBytes >= kWarps * kRows * (kQueryStride + 2) * 4, "room to merge");
};

// The sums and statistics of each warp for a thread block's rows, in shared memory.
template <typename C, int D>
struct WarpResults {
  using Shape = FewRows<C, D>;

  float* sums;   // [warp][row][kQueryStride]
  float* stats;  // [warp][row]{maximum in units of exp2, sum}

  __device__ __forceinline__ explicit WarpResults(void* shared)
      : sums(static_cast<float*>(shared)),
        stats(sums + Shape::kWarps * Shape::kRows * Shape::kQueryStride) {}

  template <typename Seen>
  __device__ __forceinline__ void put(const Seen& seen, const Scoring& scoring) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = warp_id() * Shape::kRows + Seen::row_of(0, half);
      const float sum = sum_of_quad(seen.sum[0][half]);
      if (lane_id() % 4 == 0) {
        stats[row * 2] = seen.maximum[0][half] * scoring.factor;
        stats[row * 2 + 1] = sum;
      }
#pragma unroll
      for (int column = 0; column < D / 8; ++column)
#pragma unroll
        for (int i = 0; i < 2; ++i)
          sums[row * Shape::kQueryStride + column_of<C>(column, i)] =
              seen.out[0][column][half * 2 + i];
    }
  }
};

// Writes a thread block's rows, as results or as partial results.
template <typename T, typename C, int D>
__device__ __forceinline__ void write_rows(const WarpResults<C, D>& results,
                                           const Sequence& sequence, const Split& split,
                                           int first_row) {
  using Shape = FewRows<C, D>;
  const AttentionCall& call = sequence.call;
  const int num_rows = min(Shape::kRows, sequence.num_rows - first_row);
  for (int item = threadIdx.x; item < num_rows * D; item += Shape::kThreads) {
    const int row = item / D, column = item % D;
    float most = -INFINITY;
#pragma unroll
    for (int warp = 0; warp < Shape::kWarps; ++warp)
      most = fmaxf(most, results.stats[(warp * Shape::kRows + row) * 2]);
    const float reference = most == -INFINITY ? 0.0f : most;
    float total = 0, weight = 0;
#pragma unroll
    for (int warp = 0; warp < Shape::kWarps; ++warp) {
      const int place = warp * Shape::kRows + row;
      const float scale = exp2f(results.stats[place * 2] - reference);
      total += results.sums[place * Shape::kQueryStride + column] * scale;
      weight += results.stats[place * 2 + 1] * scale;
    }
    if (split.count == 1) {
      const float value = weight == 0 ? 0.0f : total / weight;
      const int64_t offset = sequence.offset(first_row + row, call.out_stride) + column;
      static_cast<T*>(call.out)[offset] = from_float<T>(value);
    } else {
      const int64_t place = split.place(sequence, first_row + row);
      call.partial_sums[place * D + column] = total;
      if (column == 0) {
        call.partial_stats[place * 2] = most;
        call.partial_stats[place * 2 + 1] = weight;
      }
    }
  }
}

// Grid: tiles of rows times splits, KV heads, sequences.
template <typename T, typename C, int D>
__global__ void __launch_bounds__(FewRows<C, D>::kThreads) attend_few_rows(AttentionCall call) {
  using Shape = FewRows<C, D>;
  SHARED_MEMORY(shared);
  const Sequence sequence(call, blockIdx.z, blockIdx.y);
  const int first_row = blockIdx.x / call.max_splits * Shape::kRows;
  if (first_row >= sequence.num_rows) return;
  const Split split(sequence, blockIdx.x % call.max_splits);
  if (split.index >= split.count) return;

  T* const query_rows = reinterpret_cast<T*>(shared);
  C* const stages = reinterpret_cast<C*>(query_rows + Shape::kRows * Shape::kQueryStride) +
                    warp_id() * 4 * Shape::kTile;
  const C* const cache = static_cast<const C*>(call.kv_cache);
  constexpr int kStep = Shape::kWarps * Shape::kKeys;
  const int first_key = split.keys.begin + warp_id() * Shape::kKeys;
  const Scoring scoring(call);

  // The cache row of this lane's key in a tile; in tiles of fewer keys the last lanes have none.
  const auto look_up = [&](int tile_key) {
    const int key = tile_key + lane_id();
    return lane_id() < Shape::kKeys && key < split.keys.end ? sequence.cache_row(key) : -1;
  };
  const auto start_tile = [&](int32_t row, int stage) {
    C* const keys = stages + stage * 2 * Shape::kTile;
    start_rows<C, D, Shape::kKeys>(keys, cache, row);
    start_rows<C, D, Shape::kKeys>(keys + Shape::kTile, cache,
                                   row < 0 ? row : row + call.block_size);
    commit_copies();
  };

  start_queries<T, D, Shape::kRows, Shape::kThreads>(query_rows, sequence, first_row);
  start_tile(look_up(first_key), 0);
  int32_t next_row = look_up(first_key + kStep);
  wait_for_copies<0>();
  __syncthreads();
  arrange_queries<T, C, D, Shape::kRows, Shape::kThreads>(query_rows);
  const Queries<T, C, D, 1> queries(query_rows);
  Attention<T, C, D, 1, Shape::kKeys> seen(sequence, first_row);

  const int last_row = min(first_row + Shape::kRows, sequence.num_rows) - 1;
  const int seen_by_all_from = sequence.first_visible(sequence.position(last_row));
  const int seen_by_all_to = min(sequence.position(first_row) + 1, split.keys.end);
  int stage = 0;
  for (int key = first_key; key < split.keys.end; key += kStep, stage ^= 1) {
    start_tile(next_row, stage ^ 1);
    next_row = look_up(key + 2 * kStep);
    wait_for_copies<1>();
    __syncwarp();
    const C* const keys = stages + stage * 2 * Shape::kTile;
    seen.multiply(queries, keys);
    const bool hides = key < seen_by_all_from || key + Shape::kKeys > seen_by_all_to;
    seen.weigh(scoring, sequence, key, split.keys.end, hides);
    seen.add(keys + Shape::kTile);
    __syncwarp();
  }
  wait_for_copies<0>();
  __syncthreads();
  WarpResults<C, D> results(shared);
  results.put(seen, scoring);
  __syncthreads();
  write_rows<T>(results, sequence, split, first_row);
}

}  // namespace tokenmill

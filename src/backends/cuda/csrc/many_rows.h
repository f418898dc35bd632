// Attention for sequences with many rows (prompts and chunks): limited by arithmetic. A thread
// block computes a tile of rows of one KV head in one sequence, over all keys that they see. Its
// warps share tiles of keys and values: keys are loaded while values are used, and vice versa.
#pragma once

#include "tensor_cores.h"

namespace tokenmill {

template <typename C, int D>
struct ManyRows {
  static constexpr int kWarps = 4;
  static constexpr int kThreads = kWarps * 32;
  static constexpr int kTiles = D <= 128 ? 2 : 1;  // of 16 rows, per warp
  static constexpr int kRowsOfWarp = kTiles * 16;
  static constexpr int kRows = kWarps * kRowsOfWarp;
  static constexpr int kKeys = D <= 64 ? 64 : 32;  // the most that registers allow
  static constexpr int kKeysOfWarp = kKeys / kWarps;  // the keys that one warp copies
  static constexpr int kSharedBytes =
      kRows * kStride<Half, D> * 2 + 2 * kKeys * kStride<C, D> * int(sizeof(C));
};

template <typename T, typename C, int D>
using SeenByManyRows = Attention<T, C, D, ManyRows<C, D>::kTiles, ManyRows<C, D>::kKeys>;

template <typename T, typename C, int D>
__device__ __forceinline__ void write_rows(const SeenByManyRows<T, C, D>& seen,
                                           const Sequence& sequence, int first_row) {
  T* const out = static_cast<T*>(sequence.call.out);
#pragma unroll
  for (int tile = 0; tile < ManyRows<C, D>::kTiles; ++tile)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float sum = sum_of_quad(seen.sum[tile][half]);
      const int row = first_row + seen.row_of(tile, half);
      if (row >= sequence.num_rows) continue;
      const float scale = sum == 0 ? 0.0f : 1.0f / sum;
      T* const to = out + sequence.offset(row, sequence.call.out_stride);
#pragma unroll
      for (int column = 0; column < D / 8; column += 2)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float(&first)[4] = seen.out[tile][kIsFp8<C> ? column : column + i];
          const float(&second)[4] = seen.out[tile][kIsFp8<C> ? column + 1 : column + i];
          const int at = kIsFp8<C> ? column_of<C>(column, i) : column_of<C>(column + i, 0);
          *reinterpret_cast<uint32_t*>(to + at) =
              kIsFp8<C> ? pack<T>(first[half * 2 + i] * scale, second[half * 2 + i] * scale)
                        : pack<T>(first[half * 2] * scale, first[half * 2 + 1] * scale);
        }
    }
}

// Grid: tiles of rows, KV heads, sequences. Tiles with the most keys start first.
template <typename T, typename C, int D>
__global__ void __launch_bounds__(ManyRows<C, D>::kThreads) attend_many_rows(AttentionCall call) {
  using Shape = ManyRows<C, D>;
  SHARED_MEMORY(shared);
  const Sequence sequence(call, blockIdx.z, blockIdx.y);
  const int num_tiles = (sequence.num_rows + Shape::kRows - 1) / Shape::kRows;
  const int first_row = (num_tiles - 1 - static_cast<int>(blockIdx.x)) * Shape::kRows;
  if (first_row < 0) return;
  const int last_row = min(first_row + Shape::kRows, sequence.num_rows) - 1;
  const Keys visible = sequence.visible(first_row, last_row);

  T* const query_rows = reinterpret_cast<T*>(shared);
  C* const keys = reinterpret_cast<C*>(query_rows + Shape::kRows * kStride<T, D>);
  C* const values = keys + Shape::kKeys * kStride<C, D>;
  const int warp_offset = warp_id() * Shape::kKeysOfWarp;
  const C* const cache = static_cast<const C*>(call.kv_cache);
  const Scoring scoring(call);

  const auto look_up = [&](int tile_key) {
    const int key = tile_key + warp_offset + lane_id();
    return lane_id() < Shape::kKeysOfWarp && key < visible.end ? sequence.cache_row(key) : -1;
  };
  const auto start_tile = [&](C* tile, int32_t row) {
    start_rows<C, D, Shape::kKeysOfWarp>(tile + warp_offset * kStride<C, D>, cache, row);
    commit_copies();
  };

  int32_t row = look_up(visible.begin);
  start_queries<T, D, Shape::kRows, Shape::kThreads>(query_rows, sequence, first_row);
  start_tile(keys, row);
  wait_for_copies<0>();
  __syncthreads();
  arrange_queries<T, C, D, Shape::kRows, Shape::kThreads>(query_rows);
  const Queries<T, C, D, Shape::kTiles> queries(query_rows +
                                             warp_id() * Shape::kRowsOfWarp * kStride<T, D>);
  const int first_of_warp = first_row + warp_id() * Shape::kRowsOfWarp;
  SeenByManyRows<T, C, D> seen(sequence, first_of_warp);

  const int last_of_warp = first_of_warp + Shape::kRowsOfWarp - 1;
  const int seen_by_all_from = sequence.first_visible(sequence.position(last_of_warp));
  const int seen_by_all_to = min(sequence.position(first_of_warp) + 1, visible.end);
  for (int key = visible.begin; key < visible.end; key += Shape::kKeys) {
    wait_for_copies<0>();
    __syncthreads();  // the keys have arrived, and no warp needs the previous values any more
    start_tile(values, row < 0 ? row : row + call.block_size);
    row = look_up(key + Shape::kKeys);
    seen.multiply(queries, keys);
    wait_for_copies<0>();
    __syncthreads();  // the values have arrived, and no warp needs the keys any more
    if (key + Shape::kKeys < visible.end) start_tile(keys, row);
    const bool hides = key < seen_by_all_from || key + Shape::kKeys > seen_by_all_to;
    seen.weigh(scoring, sequence, key, visible.end, hides);
    seen.add(values);
  }
  write_rows<T, C, D>(seen, sequence, first_of_warp);
}

}  // namespace tokenmill

// Attention for rows of 16-bit queries over tiles of keys, on tensor cores, with an online softmax
// (FlashAttention-2, arXiv 2307.08691).
#pragma once

#include "products.h"
#include "sequence.h"

namespace tokenmill {

__device__ __forceinline__ float max_of_quad(float value) {
  value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, 1));
  return fmaxf(value, __shfl_xor_sync(0xffffffffu, value, 2));
}

__device__ __forceinline__ float sum_of_quad(float value) {
  value += __shfl_xor_sync(0xffffffffu, value, 1);
  return value + __shfl_xor_sync(0xffffffffu, value, 2);
}

// Starts to copy ROWS rows of the cache to shared memory. `row_of_lane` of lane i is the cache row
// of row i; if it is below 0, zeros are written. So slots without a token, which may hold NaN, are
// never read.
template <typename C, int D, int ROWS>
__device__ __forceinline__ void start_rows(C* shared, const C* cache, int32_t row_of_lane) {
  constexpr int kChunk = 16 / sizeof(C);
  constexpr int kChunks = D / kChunk;
#pragma unroll
  for (int pass = 0; pass < (ROWS * kChunks + 31) / 32; ++pass) {
    const int item = pass * 32 + lane_id();
    const int row = item / kChunks, chunk = item % kChunks;
    const int32_t place = __shfl_sync(0xffffffffu, row_of_lane, row);
    if (ROWS * kChunks % 32 == 0 || row < ROWS)
      start_copy(shared + row * kStride<C, D> + chunk * kChunk,
                 cache + (place < 0 ? 0 : int64_t(place) * D + chunk * kChunk), place >= 0);
  }
}

// Starts to copy rows [first_row, first_row + ROWS) of the queries; zeros follow the last row.
template <typename T, int D, int ROWS, int THREADS>
__device__ __forceinline__ void start_queries(T* shared, const Sequence& sequence, int first_row) {
  constexpr int kChunks = D / 8;
  const T* queries = static_cast<const T*>(sequence.call.queries);
  for (int item = threadIdx.x; item < ROWS * kChunks; item += THREADS) {
    const int row = item / kChunks, chunk = item % kChunks;
    const bool is_wanted = first_row + row < sequence.num_rows;
    const int64_t offset =
        is_wanted ? sequence.offset(first_row + row, sequence.call.query_stride) : 0;
    start_copy(shared + row * kStride<T, D> + chunk * 8, queries + offset + chunk * 8, is_wanted);
  }
}

// A warp's rows of queries, 16 per tile; in registers if they fit.
template <typename T, typename C, int D, int TILES>
struct Queries {
  static constexpr bool kInRegisters = TILES * D <= (kIsFp8<C> ? 96 : 128);
  const T* rows;
  uint32_t kept[kInRegisters ? D / 16 : 1][TILES][4];

  __device__ __forceinline__ explicit Queries(const T* rows) : rows(rows) {
    if constexpr (kInRegisters) {
#pragma unroll
      for (int step = 0; step < D / 16; ++step) load(kept[step], step);
    }
  }

  __device__ __forceinline__ void load(uint32_t (&to)[TILES][4], int step) const {
#pragma unroll
    for (int tile = 0; tile < TILES; ++tile) {
      const int row = tile * 16 + lane_id() % 16;
      load_matrices(to[tile], rows + row * kStride<T, D> + step * 16 + lane_id() / 16 * 8);
    }
  }

  __device__ __forceinline__ void fragments(uint32_t (&to)[TILES][4], int step) const {
    if constexpr (kInRegisters) {
#pragma unroll
      for (int tile = 0; tile < TILES; ++tile)
#pragma unroll
        for (int i = 0; i < 4; ++i) to[tile][i] = kept[step][tile][i];
    } else {
      load(to, step);
    }
  }
};

// The state of a warp's rows after the keys seen so far. In each tile a lane holds two of every
// eight columns of the rows r and r + 8, with r = lane / 4; see multiply_accumulate and column_of.
template <typename T, typename C, int D, int TILES, int KEYS>
struct Attention {
  float out[TILES][D / 8][4];
  float maximum[TILES][2];  // of raw scores
  float sum[TILES][2];      // of this lane's columns only
  int position[TILES][2];
  float scores[TILES][KEYS / 8][4];

  // `first_row` is the warp's first row.
  __device__ __forceinline__ Attention(const Sequence& sequence, int first_row) {
#pragma unroll
    for (int tile = 0; tile < TILES; ++tile) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        maximum[tile][half] = -INFINITY;
        sum[tile][half] = 0;
        position[tile][half] = sequence.position(first_row + row_of(tile, half));
      }
#pragma unroll
      for (int column = 0; column < D / 8; ++column)
#pragma unroll
        for (int i = 0; i < 4; ++i) out[tile][column][i] = 0;
    }
  }

  __device__ __forceinline__ static int row_of(int tile, int half) {
    return tile * 16 + half * 8 + lane_id() / 4;
  }

  // Multiplies all rows with the tile's keys.
  __device__ __forceinline__ void multiply(const Queries<T, C, D, TILES>& queries, const C* keys) {
#pragma unroll
    for (int tile = 0; tile < TILES; ++tile)
#pragma unroll
      for (int column = 0; column < KEYS / 8; ++column)
#pragma unroll
        for (int i = 0; i < 4; ++i) scores[tile][column][i] = 0;
#pragma unroll
    for (int step = 0; step < D / 16; ++step) {
      uint32_t a[TILES][4];
      queries.fragments(a, step);
      multiply_keys<T, D>(scores, a, keys, step);
    }
  }

  // Turns products into weights, and rescales the state to the same maximum. `hides`: at least one
  // row must not see at least one of the keys, which start at `first_key`, because of causality,
  // the window, or `end`.
  __device__ __forceinline__ void weigh(const Scoring& scoring, const Sequence& sequence,
                                        int first_key, int end, bool hides) {
    if (scoring.cap > 0) {
#pragma unroll
      for (int tile = 0; tile < TILES; ++tile)
#pragma unroll
        for (int column = 0; column < KEYS / 8; ++column)
#pragma unroll
          for (int i = 0; i < 4; ++i)
            scores[tile][column][i] = scoring.bend(scores[tile][column][i]);
    }
    if (hides) hide(sequence, first_key, end);
#pragma unroll
    for (int tile = 0; tile < TILES; ++tile)
#pragma unroll
      for (int half = 0; half < 2; ++half) weigh_row(scoring, tile, half);
  }

  // Adds the weighted values.
  __device__ __forceinline__ void add(const C* values) { add_values<T, D>(out, scores, values); }

 private:
  __device__ __forceinline__ void hide(const Sequence& sequence, int first_key, int end) {
#pragma unroll
    for (int tile = 0; tile < TILES; ++tile)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int first = sequence.first_visible(position[tile][half]);
        const int last = min(position[tile][half], end - 1);
#pragma unroll
        for (int column = 0; column < KEYS / 8; ++column)
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            const int key = first_key + column * 8 + lane_id() % 4 * 2 + i;
            if (key < first || key > last) scores[tile][column][half * 2 + i] = -INFINITY;
          }
      }
  }

  __device__ __forceinline__ void weigh_row(const Scoring& scoring, int tile, int half) {
    float most = maximum[tile][half];
#pragma unroll
    for (int column = 0; column < KEYS / 8; ++column)
      most = fmaxf(most, fmaxf(scores[tile][column][half * 2], scores[tile][column][half * 2 + 1]));
    most = max_of_quad(most);
    const float reference = most == -INFINITY ? 0.0f : most * scoring.factor;
    const float correction = exp2f(maximum[tile][half] * scoring.factor - reference);
    maximum[tile][half] = most;
    float total = 0;
#pragma unroll
    for (int column = 0; column < KEYS / 8; ++column)
#pragma unroll
      for (int i = half * 2; i < half * 2 + 2; ++i) {
        float& score = scores[tile][column][i];
        score = exp2f(fmaf(score, scoring.factor, -reference));
        total += score;
      }
    sum[tile][half] = sum[tile][half] * correction + total;
#pragma unroll
    for (int column = 0; column < D / 8; ++column)
#pragma unroll
      for (int i = half * 2; i < half * 2 + 2; ++i) out[tile][column][i] *= correction;
  }
};

}  // namespace tokenmill

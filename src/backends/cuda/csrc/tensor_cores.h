// Attention of rows of 16-bit queries over tiles of keys, by tensor cores, with an online softmax
// (FlashAttention-2, arXiv 2307.08691).
#pragma once

#include "sequence.h"

namespace tokenmill {

// Rows of a tile in shared memory are 16 bytes longer than a row: an odd number of 16 bytes, so
// that the eight rows that one load touches lie in different banks, for every head size.
template <int D>
constexpr int kStride = D + 8;

__device__ __forceinline__ int lane_id() { return threadIdx.x % 32; }
__device__ __forceinline__ int warp_id() { return threadIdx.x / 32; }

__device__ __forceinline__ float max_of_quad(float value) {
  value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, 1));
  return fmaxf(value, __shfl_xor_sync(0xffffffffu, value, 2));
}

__device__ __forceinline__ float sum_of_quad(float value) {
  value += __shfl_xor_sync(0xffffffffu, value, 1);
  return value + __shfl_xor_sync(0xffffffffu, value, 2);
}

// Starts to copy ROWS rows of the cache to shared memory. Lane i knows where row i is; below 0, it
// gets zeros: what lies in slots without a token, even NaN, is never seen.
template <typename T, int D, int ROWS>
__device__ __forceinline__ void start_rows(T* shared, const T* cache, int32_t row_of_lane) {
  constexpr int kChunks = D / 8;
#pragma unroll
  for (int pass = 0; pass < (ROWS * kChunks + 31) / 32; ++pass) {
    const int item = pass * 32 + lane_id();
    const int row = item / kChunks, chunk = item % kChunks;
    const int32_t place = __shfl_sync(0xffffffffu, row_of_lane, row);
    if (ROWS * kChunks % 32 == 0 || row < ROWS)
      start_copy(shared + row * kStride<D> + chunk * 8,
                 cache + (place < 0 ? 0 : int64_t(place) * D + chunk * 8), place >= 0);
  }
}

// Starts to copy rows [first_row, first_row + ROWS) of the queries, zeros past the last one.
template <typename T, int D, int ROWS, int THREADS>
__device__ __forceinline__ void start_queries(T* shared, const Sequence& sequence, int first_row) {
  constexpr int kChunks = D / 8;
  const T* queries = static_cast<const T*>(sequence.call.queries);
  for (int item = threadIdx.x; item < ROWS * kChunks; item += THREADS) {
    const int row = item / kChunks, chunk = item % kChunks;
    const bool is_wanted = first_row + row < sequence.num_rows;
    const int64_t offset =
        is_wanted ? sequence.offset(first_row + row, sequence.call.query_stride) : 0;
    start_copy(shared + row * kStride<D> + chunk * 8, queries + offset + chunk * 8, is_wanted);
  }
}

// A warp's rows of queries, 16 per tile: in registers where there is room for them.
template <typename T, int D, int TILES>
struct Queries {
  static constexpr bool kInRegisters = TILES * D <= 128;
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
      load_matrices(to[tile], rows + row * kStride<D> + step * 16 + lane_id() / 16 * 8);
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

// What a warp's rows have seen so far. A lane holds, of the rows r and r + 8 of each tile with
// r = lane / 4, two columns of every eight: those of multiply_accumulate.
template <typename T, int D, int TILES, int KEYS>
struct Attention {
  float out[TILES][D / 8][4];
  float maximum[TILES][2];  // of raw scores
  float sum[TILES][2];      // of this lane's columns only
  int position[TILES][2];
  float scores[TILES][KEYS / 8][4];

  // `first_row` is the warp's first.
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

  // Products of all rows with the tile's keys.
  __device__ __forceinline__ void multiply(const Queries<T, D, TILES>& queries, const T* keys) {
#pragma unroll
    for (int tile = 0; tile < TILES; ++tile)
#pragma unroll
      for (int column = 0; column < KEYS / 8; ++column)
#pragma unroll
        for (int i = 0; i < 4; ++i) scores[tile][column][i] = 0;
    const T* row = keys + (lane_id() / 16 * 8 + lane_id() % 8) * kStride<D> + lane_id() / 8 % 2 * 8;
#pragma unroll
    for (int step = 0; step < D / 16; ++step) {
      uint32_t a[TILES][4];
      queries.fragments(a, step);
#pragma unroll
      for (int column = 0; column < KEYS / 16; ++column) {
        uint32_t b[4];
        load_matrices(b, row + column * 16 * kStride<D> + step * 16);
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile) {
          multiply_accumulate<T>(scores[tile][2 * column], a[tile], b[0], b[1]);
          multiply_accumulate<T>(scores[tile][2 * column + 1], a[tile], b[2], b[3]);
        }
      }
    }
  }

  // Turns products into weights, and what was seen before into the same units. `hides` says
  // whether some row must not see some key, from `first_key` on, because of causality, window, or
  // `end`.
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

  // Adds the values, by weight.
  __device__ __forceinline__ void add(const T* values) {
    const T* row = values + lane_id() % 16 * kStride<D> + lane_id() / 16 * 8;
#pragma unroll
    for (int step = 0; step < KEYS / 16; ++step) {
      uint32_t a[TILES][4];
#pragma unroll
      for (int tile = 0; tile < TILES; ++tile) {
        const float(&low)[4] = scores[tile][2 * step];
        const float(&high)[4] = scores[tile][2 * step + 1];
        a[tile][0] = pack<T>(low[0], low[1]);
        a[tile][1] = pack<T>(low[2], low[3]);
        a[tile][2] = pack<T>(high[0], high[1]);
        a[tile][3] = pack<T>(high[2], high[3]);
      }
#pragma unroll
      for (int column = 0; column < D / 16; ++column) {
        uint32_t b[4];
        load_matrices_transposed(b, row + step * 16 * kStride<D> + column * 16);
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile) {
          multiply_accumulate<T>(out[tile][2 * column], a[tile], b[0], b[1]);
          multiply_accumulate<T>(out[tile][2 * column + 1], a[tile], b[2], b[3]);
        }
      }
    }
  }

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

// Products with a tile of keys or values in shared memory, on tensor cores. If the cache holds FP8,
// its bytes are converted in registers; the converted tile is not stored.
#pragma once

#include "fp8.h"

namespace tokenmill {

// Rows in shared memory are an odd multiple of 16 bytes apart. So the eight rows that one load
// reads are in different banks, for every head size.
template <typename E, int D>
constexpr int kStride = (D * int(sizeof(E)) / 16 | 1) * 16 / int(sizeof(E));

__device__ __forceinline__ int lane_id() { return threadIdx.x % 32; }
__device__ __forceinline__ int warp_id() { return threadIdx.x / 32; }

// The output column of entry i (0 or 1) of a lane's fragment `column`. For FP8, add_values below
// gets pairs of adjacent columns, and puts one into each of two fragments.
template <typename C>
__device__ __forceinline__ int column_of(int column, int i) {
  return kIsFp8<C> ? column / 2 * 16 + lane_id() % 4 * 4 + i * 2 + column % 2
                   : column * 8 + lane_id() % 4 * 2 + i;
}

// Reorders the elements of queries for multiply_keys if the cache holds FP8. There a lane loads
// four adjacent elements of a key. So of every 16 elements of a query, the first two of each four
// come first, then the other two.
template <typename T, typename C, int D, int ROWS, int THREADS>
__device__ __forceinline__ void arrange_queries(T* rows) {
  if constexpr (kIsFp8<C>) {
    for (int item = threadIdx.x; item < ROWS * (D / 16); item += THREADS) {
      uint4* const at =
          reinterpret_cast<uint4*>(rows + item / (D / 16) * kStride<T, D> + item % (D / 16) * 16);
      const uint4 low = at[0], high = at[1];
      at[0] = {low.x, low.z, high.x, high.z};
      at[1] = {low.y, low.w, high.y, high.w};
    }
    __syncthreads();
  }
}

// scores += queries keys^T for 16 of the D columns.
template <typename T, int D, int TILES, int COLUMNS>
__device__ __forceinline__ void multiply_keys(float (&scores)[TILES][COLUMNS][4],
                                              const uint32_t (&a)[TILES][4], const T* keys,
                                              int step) {
  const T* row =
      keys + (lane_id() / 16 * 8 + lane_id() % 8) * kStride<T, D> + lane_id() / 8 % 2 * 8;
#pragma unroll
  for (int column = 0; column < COLUMNS / 2; ++column) {
    uint32_t b[4];
    load_matrices(b, row + column * 16 * kStride<T, D> + step * 16);
#pragma unroll
    for (int tile = 0; tile < TILES; ++tile) {
      multiply_accumulate<T>(scores[tile][2 * column], a[tile], b[0], b[1]);
      multiply_accumulate<T>(scores[tile][2 * column + 1], a[tile], b[2], b[3]);
    }
  }
}

template <typename T, int D, int TILES, int COLUMNS, typename C>
  requires(kIsFp8<C>)
__device__ __forceinline__ void multiply_keys(float (&scores)[TILES][COLUMNS][4],
                                              const uint32_t (&a)[TILES][4], const C* keys,
                                              int step) {
#pragma unroll
  for (int column = 0; column < COLUMNS / 4; ++column) {
    uint32_t words[4];  // words[i]: four elements of one of the keys [8 i, 8 i + 8)
    load_matrices(words, keys + (column * 32 + lane_id()) * kStride<C, D> + step * 16);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t b0 = widen<T, C, 0, 1>(words[i]);
      const uint32_t b1 = widen<T, C, 2, 3>(words[i]);
#pragma unroll
      for (int tile = 0; tile < TILES; ++tile)
        multiply_accumulate<T>(scores[tile][4 * column + i], a[tile], b0, b1);
    }
  }
}

// Packs the weights of 16 keys into a fragment.
template <typename T>
__device__ __forceinline__ void pack_weights(uint32_t (&a)[4], const float (&low)[4],
                                             const float (&high)[4]) {
  a[0] = pack<T>(low[0], low[1]);
  a[1] = pack<T>(low[2], low[3]);
  a[2] = pack<T>(high[0], high[1]);
  a[3] = pack<T>(high[2], high[3]);
}

// out += weights values.
template <typename T, int D, int TILES, int COLUMNS>
__device__ __forceinline__ void add_values(float (&out)[TILES][D / 8][4],
                                           const float (&weights)[TILES][COLUMNS][4],
                                           const T* values) {
  const T* row = values + lane_id() % 16 * kStride<T, D> + lane_id() / 16 * 8;
#pragma unroll
  for (int step = 0; step < COLUMNS / 2; ++step) {
    uint32_t a[TILES][4];
#pragma unroll
    for (int tile = 0; tile < TILES; ++tile)
      pack_weights<T>(a[tile], weights[tile][2 * step], weights[tile][2 * step + 1]);
#pragma unroll
    for (int column = 0; column < D / 16; ++column) {
      uint32_t b[4];
      load_matrices_transposed(b, row + step * 16 * kStride<T, D> + column * 16);
#pragma unroll
      for (int tile = 0; tile < TILES; ++tile) {
        multiply_accumulate<T>(out[tile][2 * column], a[tile], b[0], b[1]);
        multiply_accumulate<T>(out[tile][2 * column + 1], a[tile], b[2], b[3]);
      }
    }
  }
}

template <typename T, int D, int TILES, int COLUMNS, typename C>
  requires(kIsFp8<C>)
__device__ __forceinline__ void add_values(float (&out)[TILES][D / 8][4],
                                           const float (&weights)[TILES][COLUMNS][4],
                                           const C* values) {
#pragma unroll
  for (int step = 0; step < COLUMNS / 2; ++step) {
    uint32_t a[TILES][4];
#pragma unroll
    for (int tile = 0; tile < TILES; ++tile)
      pack_weights<T>(a[tile], weights[tile][2 * step], weights[tile][2 * step + 1]);
#pragma unroll
    for (int pair = 0; pair < (D + 31) / 32; ++pair) {
      const bool is_whole = pair * 32 + 16 < D;  // else only 16 of 32 columns are left
      const C* const row = values + (step * 16 + lane_id() % 16) * kStride<C, D> + pair * 32;
      uint32_t words[4];  // each has two adjacent columns of two adjacent keys
      load_matrices_transposed(words, is_whole ? row + lane_id() / 16 * 16 : row);
#pragma unroll
      for (int half = 0; half < (is_whole ? 2 : 1); ++half) {
        const uint32_t low = words[2 * half], high = words[2 * half + 1];
        const uint32_t even[2] = {widen<T, C, 0, 2>(low), widen<T, C, 0, 2>(high)};
        const uint32_t odd[2] = {widen<T, C, 1, 3>(low), widen<T, C, 1, 3>(high)};
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile) {
          multiply_accumulate<T>(out[tile][4 * pair + 2 * half], a[tile], even[0], even[1]);
          multiply_accumulate<T>(out[tile][4 * pair + 2 * half + 1], a[tile], odd[0], odd[1]);
        }
      }
    }
  }
}

}  // namespace tokenmill

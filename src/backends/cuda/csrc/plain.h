// Attention in float, row by row: slow, and as exact as float can be. A warp computes one row over
// a split of the context, 32 keys at a time. For keys, each lane computes one score; for values,
// each lane computes some columns.
#pragma once

#include "fp8.h"
#include "sequence.h"

namespace tokenmill {

constexpr int kPlainRows = 4;  // of a thread block, one per warp
constexpr int kPlainSharedBytes = kPlainRows * 32 * 8;

__device__ __forceinline__ float max_of_warp(float value) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2)
    value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, distance));
  return value;
}

__device__ __forceinline__ float sum_of_warp(float value) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2)
    value += __shfl_xor_sync(0xffffffffu, value, distance);
  return value;
}

template <typename C, int D>
__device__ __forceinline__ float score_of(const AttentionCall& call, const float* query,
                                          const C* key) {
  float product = 0;
#pragma unroll 8
  for (int column = 0; column < D; ++column)
    product = fmaf(query[column], to_float(key[column]), product);
  const float score = product * call.scale;
  const float cap = call.logits_soft_cap;
  return cap > 0 ? cap * tanhf(score / cap) : score;
}

// Grid: tiles of rows times splits, KV heads, sequences.
template <typename C, int D>
__global__ void __launch_bounds__(kPlainRows * 32) attend_plainly(AttentionCall call) {
  constexpr int kParts = (D + 31) / 32;  // columns of a row that a lane holds
  SHARED_MEMORY(shared);
  const Sequence sequence(call, blockIdx.z, blockIdx.y);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int row = blockIdx.x / call.max_splits * kPlainRows + warp;
  if (row >= sequence.num_rows) return;
  const Split split(sequence, blockIdx.x % call.max_splits);
  if (split.index >= split.count) return;
  float* const weights = reinterpret_cast<float*>(shared) + warp * 64;
  int32_t* const places = reinterpret_cast<int32_t*>(weights + 32);
  const float* const query =
      static_cast<const float*>(call.queries) + sequence.offset(row, call.query_stride);
  const C* const cache = static_cast<const C*>(call.kv_cache);

  float out[kParts] = {};
  float maximum = -INFINITY, sum = 0;
  const int begin = max(split.keys.begin, sequence.first_visible(sequence.position(row)));
  const int end = min(split.keys.end, sequence.position(row) + 1);
  for (int first = begin; first < end; first += 32) {
    const int key = first + lane;
    const int32_t place = key < end ? sequence.cache_row(key) : 0;
    const float score =
        key < end ? score_of<C, D>(call, query, cache + int64_t(place) * D) : -INFINITY;
    const float most = fmaxf(maximum, max_of_warp(score));
    const float reference = most == -INFINITY ? 0.0f : most;
    const float correction = exp2f((maximum - reference) * kLog2E);
    const float weight = exp2f((score - reference) * kLog2E);
    maximum = most;
    sum = sum * correction + weight;
    weights[lane] = weight;
    places[lane] = place + call.block_size;
    __syncwarp();
#pragma unroll
    for (int part = 0; part < kParts; ++part) out[part] *= correction;
    for (int i = 0; i < min(32, end - first); ++i) {
      const C* const value = cache + int64_t(places[i]) * D;
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        const int column = part * 32 + lane;
        if (column < D) out[part] = fmaf(weights[i], to_float(value[column]), out[part]);
      }
    }
    __syncwarp();
  }
  sum = sum_of_warp(sum);
  const bool is_whole = split.count == 1;
  const int64_t place = is_whole ? 0 : split.place(sequence, row);
  float* const to =
      is_whole ? static_cast<float*>(call.out) + sequence.offset(row, call.out_stride)
               : call.partial_sums + place * D;
  const float scale = !is_whole ? 1.0f : sum == 0 ? 0.0f : 1.0f / sum;
#pragma unroll
  for (int part = 0; part < kParts; ++part)
    if (part * 32 + lane < D) to[part * 32 + lane] = out[part] * scale;
  if (!is_whole && lane == 0) {
    call.partial_stats[place * 2] = maximum * kLog2E;
    call.partial_stats[place * 2 + 1] = sum;
  }
}

}  // namespace tokenmill

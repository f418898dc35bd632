// Writes keys and values into the cache, rounded to its element type.
#pragma once

#include "calls.h"
#include "fp8.h"

namespace tokenmill {

constexpr int kWriteThreads = 256;

// Elements that a thread writes at a time: 16 bytes, or 8 bytes of FP8.
template <typename C>
constexpr int kWritten = kIsFp8<C> ? 8 : 16 / sizeof(C);

template <typename T, typename C>
__device__ __forceinline__ void write_elements(C* to, const T* from) {
  const uint4* const source = reinterpret_cast<const uint4*>(from);
  if constexpr (!kIsFp8<C>) {
    *reinterpret_cast<uint4*>(to) = *source;
  } else {
    uint4 loaded[sizeof(T) / 2];
#pragma unroll
    for (int i = 0; i < int(sizeof(T) / 2); ++i) loaded[i] = source[i];
    T wide[8];
    C narrowed[8];
    memcpy(wide, loaded, sizeof(wide));
#pragma unroll
    for (int i = 0; i < 8; ++i) narrowed[i] = narrow<C>(to_float(wide[i]));
    uint2 stored;
    memcpy(&stored, narrowed, sizeof(stored));
    *reinterpret_cast<uint2*>(to) = stored;
  }
}

template <typename T, typename C>
__global__ void __launch_bounds__(kWriteThreads) write_kv(WriteCall call) {
  const int chunks = call.head_size / kWritten<C>;
  const int64_t per_token = int64_t(call.num_kv_heads) * chunks;
  const int64_t step = int64_t(gridDim.x) * kWriteThreads;
  for (int64_t item = int64_t(blockIdx.x) * kWriteThreads + threadIdx.x;
       item < call.num_tokens * per_token; item += step) {
    const int64_t token = item / per_token;
    const int rest = static_cast<int>(item - token * per_token);
    const int64_t slot = call.slots[token];
    if (slot < 0) continue;
    const int head = rest / chunks, column = (rest - head * chunks) * kWritten<C>;
    const int64_t block = slot / call.block_size;
    const int64_t row = (block * call.num_kv_heads + head) * 2 * call.block_size +
                        (slot - block * call.block_size);
    const auto from = [&](const void* rows, int64_t stride) {
      return static_cast<const T*>(rows) + token * stride + head * call.head_size + column;
    };
    C* const to = static_cast<C*>(call.kv_cache) + row * call.head_size + column;
    write_elements(to, from(call.keys, call.key_stride));
    write_elements(to + int64_t(call.block_size) * call.head_size,
                   from(call.values, call.value_stride));
  }
}

}  // namespace tokenmill

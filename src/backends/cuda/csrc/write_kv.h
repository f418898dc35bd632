// Puts keys and values where attention reads them, 16 bytes per thread and turn.
#pragma once

#include "calls.h"
#include "platform.h"

namespace tokenmill {

constexpr int kWriteThreads = 256;

static __global__ void __launch_bounds__(kWriteThreads) write_kv(WriteCall call) {
  const int row_bytes = call.head_size * call.element_bytes;
  const int chunks = row_bytes / 16;
  const int64_t per_token = int64_t(call.num_kv_heads) * chunks;
  const int64_t step = int64_t(gridDim.x) * kWriteThreads;
  for (int64_t item = int64_t(blockIdx.x) * kWriteThreads + threadIdx.x;
       item < call.num_tokens * per_token; item += step) {
    const int64_t token = item / per_token;
    const int rest = static_cast<int>(item - token * per_token);
    const int64_t slot = call.slots[token];
    if (slot < 0) continue;
    const int head = rest / chunks, chunk = rest - head * chunks;
    const int64_t block = slot / call.block_size;
    const int64_t row = (block * call.num_kv_heads + head) * 2 * call.block_size +
                        (slot - block * call.block_size);
    const auto from = [&](const void* rows, int64_t stride) {
      return static_cast<const unsigned char*>(rows) + token * stride * call.element_bytes +
             head * row_bytes + chunk * 16;
    };
    unsigned char* const to =
        static_cast<unsigned char*>(call.kv_cache) + row * row_bytes + chunk * 16;
    *reinterpret_cast<uint4*>(to) =
        *reinterpret_cast<const uint4*>(from(call.keys, call.key_stride));
    *reinterpret_cast<uint4*>(to + int64_t(call.block_size) * row_bytes) =
        *reinterpret_cast<const uint4*>(from(call.values, call.value_stride));
  }
}

}  // namespace tokenmill

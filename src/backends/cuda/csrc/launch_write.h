// Chooses the kernel that writes keys and values, and its number of thread blocks; the kernels are
// the same for all head sizes.
#pragma once

#include "dispatch.h"
#include "write_kv.h"

namespace tokenmill {

template <typename T>
const char* launch_write_of(const WriteCall& call, void* stream) {
  return for_cache<T>(call.cache_element, [&](auto cached) {
    using C = decltype(cached);
    const int64_t elements = call.num_tokens * call.num_kv_heads * call.head_size;
    const int64_t blocks = divide_up(elements / kWritten<C>, kWriteThreads);
    const Grid grid{blocks < 65536 ? blocks : 65536, 1, 1};
    return launch(write_kv<T, C>, grid, kWriteThreads, 0, call, stream);
  });
}

inline const char* launch_write(const WriteCall& call, void* stream) {
  switch (call.element) {
    case Element::F32: return launch_write_of<float>(call, stream);
    case Element::F16: return launch_write_of<Half>(call, stream);
    case Element::BF16: return launch_write_of<BFloat16>(call, stream);
    default: return "unknown element";
  }
}

}  // namespace tokenmill

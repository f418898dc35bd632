// The kernels for one head size, HEAD_SIZE; this file is compiled once for each head size.
#include "head_sizes.h"
#include "launch.h"

#define WRITES (HEAD_SIZE == 128)  // only one file defines `write`, which serves all head sizes
#if WRITES
#include "launch_write.h"
#endif

#define JOIN_AGAIN(name, size) name##size
#define JOIN(name, size) JOIN_AGAIN(name, size)

namespace tokenmill {

const char* JOIN(decodes_, HEAD_SIZE)(const AttentionCall& call, void* stream) {
  return launch_decodes<HEAD_SIZE>(call, stream);
}

const char* JOIN(prompts_, HEAD_SIZE)(const AttentionCall& call, void* stream) {
  return launch_prompts<HEAD_SIZE>(call, stream);
}

#if WRITES
const char* write(const WriteCall& call, void* stream) { return launch_write(call, stream); }
#endif

}  // namespace tokenmill

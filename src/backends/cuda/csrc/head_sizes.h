// The supported head sizes; paged_attention.cu is compiled once for each of them.
#pragma once

#include "calls.h"

#define TOKENMILL_HEAD_SIZES(DO) DO(64) DO(80) DO(96) DO(112) DO(128) DO(192) DO(256)

namespace tokenmill {

// These functions queue work on a CUDA stream. They return an error message, or null on success.
const char* write(const WriteCall& call, void* stream);

#define DECLARE(size)                                               \
  const char* decodes_##size(const AttentionCall& call, void* stream); \
  const char* prompts_##size(const AttentionCall& call, void* stream);
TOKENMILL_HEAD_SIZES(DECLARE)
#undef DECLARE

}  // namespace tokenmill

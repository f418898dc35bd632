// Which kernel does what, with how many blocks.
#pragma once

#include "few_rows.h"
#include "many_rows.h"
#include "merge.h"
#include "plain.h"
#include "write_kv.h"

namespace tokenmill {

inline int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

inline const char* launch_write(const WriteCall& call, void* stream) {
  const int64_t chunks = call.num_tokens * call.num_kv_heads * call.head_size *
                         call.element_bytes / 16;
  const int64_t blocks = divide_up(chunks, kWriteThreads);
  return launch(write_kv, {blocks < 65536 ? blocks : 65536, 1, 1}, kWriteThreads, 0, call, stream);
}

// Rows of the longest sequence, in tiles of `rows`, over KV heads and sequences.
inline Grid tiles_of(const AttentionCall& call, int rows, int splits) {
  const int64_t most = int64_t(call.max_query_len) * (call.num_heads / call.num_kv_heads);
  return {divide_up(most, rows) * splits, call.num_kv_heads, call.num_sequences};
}

template <typename T, int D>
const char* merge_if_split(const AttentionCall& call, void* stream) {
  if (call.max_splits == 1) return nullptr;
  return launch(merge_splits<T, D>, tiles_of(call, kMergedRows, 1), kMergedRows * 32, 0, call,
                stream);
}

template <int D>
const char* launch_plain(const AttentionCall& call, void* stream) {
  const char* const error = launch(attend_plainly<D>, tiles_of(call, kPlainRows, call.max_splits),
                                   kPlainRows * 32, kPlainSharedBytes, call, stream);
  return error ? error : merge_if_split<float, D>(call, stream);
}

template <typename T, int D>
const char* launch_few_rows(const AttentionCall& call, void* stream) {
  using Shape = FewRows<D>;
  const char* const error =
      launch(attend_few_rows<T, D>, tiles_of(call, Shape::kRows, call.max_splits), Shape::kThreads,
             Shape::kSharedBytes, call, stream);
  return error ? error : merge_if_split<T, D>(call, stream);
}

template <typename T, int D>
const char* launch_many_rows(const AttentionCall& call, void* stream) {
  using Shape = ManyRows<D>;
  return launch(attend_many_rows<T, D>, tiles_of(call, Shape::kRows, 1), Shape::kThreads,
                Shape::kSharedBytes, call, stream);
}

// Sequences with few queries, their contexts split as the call says.
template <int D>
const char* launch_decodes(const AttentionCall& call, void* stream) {
  switch (call.element) {
    case Element::F32: return launch_plain<D>(call, stream);
    case Element::F16: return launch_few_rows<Half, D>(call, stream);
    case Element::BF16: return launch_few_rows<BFloat16, D>(call, stream);
  }
  return "unknown element";
}

// Sequences with any number of queries. Nothing is split.
template <int D>
const char* launch_prompts(const AttentionCall& call, void* stream) {
  switch (call.element) {
    case Element::F32: return launch_plain<D>(call, stream);
    case Element::F16: return launch_many_rows<Half, D>(call, stream);
    case Element::BF16: return launch_many_rows<BFloat16, D>(call, stream);
  }
  return "unknown element";
}

}  // namespace tokenmill

// Chooses the attention kernel for a call, and its number of thread blocks.
#pragma once

#include "dispatch.h"
#include "few_rows.h"
#include "many_rows.h"
#include "merge.h"
#include "plain.h"

namespace tokenmill {

// The grid: tiles of `rows` rows for the longest sequence, times splits; KV heads; sequences.
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
  const char* const error = for_cache<float>(call.cache_element, [&](auto cached) {
    using C = decltype(cached);
    return launch(attend_plainly<C, D>, tiles_of(call, kPlainRows, call.max_splits),
                  kPlainRows * 32, kPlainSharedBytes, call, stream);
  });
  return error ? error : merge_if_split<float, D>(call, stream);
}

template <typename T, int D>
const char* launch_few_rows(const AttentionCall& call, void* stream) {
  const char* const error = for_cache<T>(call.cache_element, [&](auto cached) {
    using C = decltype(cached);
    using Shape = FewRows<C, D>;
    return launch(attend_few_rows<T, C, D>, tiles_of(call, Shape::kRows, call.max_splits),
                  Shape::kThreads, Shape::kSharedBytes, call, stream);
  });
  return error ? error : merge_if_split<T, D>(call, stream);
}

template <typename T, int D>
const char* launch_many_rows(const AttentionCall& call, void* stream) {
  return for_cache<T>(call.cache_element, [&](auto cached) {
    using C = decltype(cached);
    using Shape = ManyRows<C, D>;
    return launch(attend_many_rows<T, C, D>, tiles_of(call, Shape::kRows, 1), Shape::kThreads,
                  Shape::kSharedBytes, call, stream);
  });
}

// Attention for sequences with few queries; the call says whether contexts are split.
template <int D>
const char* launch_decodes(const AttentionCall& call, void* stream) {
  switch (call.element) {
    case Element::F32: return launch_plain<D>(call, stream);
    case Element::F16: return launch_few_rows<Half, D>(call, stream);
    case Element::BF16: return launch_few_rows<BFloat16, D>(call, stream);
    default: return "unknown element";
  }
}

// Attention for sequences with any number of queries, without splits.
template <int D>
const char* launch_prompts(const AttentionCall& call, void* stream) {
  switch (call.element) {
    case Element::F32: return launch_plain<D>(call, stream);
    case Element::F16: return launch_many_rows<Half, D>(call, stream);
    case Element::BF16: return launch_many_rows<BFloat16, D>(call, stream);
    default: return "unknown element";
  }
}

}  // namespace tokenmill

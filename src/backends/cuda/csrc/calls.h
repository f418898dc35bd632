// The arguments of the kernels.
//
// The KV cache of one layer is [block][kv_head][keys, values][slot][head_size]: for each block and
// KV head, the keys are contiguous, and the values follow them. A key or a value is a row.
#pragma once

#include <cstdint>

namespace tokenmill {

// The cache holds the type of the computation (the first three), or FP8.
enum class Element : int32_t { F32 = 0, F16 = 1, BF16 = 2, E4M3 = 3, E5M2 = 4 };

// Writes the step's keys and values into the cache.
struct WriteCall {
  const void* keys;  // [tokens][kv_head][head_size], tokens key_stride apart
  const void* values;
  const int64_t* slots;  // per token block * block_size + offset; below 0: not written
  void* kv_cache;
  int64_t num_tokens;
  int64_t key_stride;  // strides in elements, a multiple of 16 bytes
  int64_t value_stride;
  int32_t num_kv_heads;
  int32_t head_size;
  int32_t block_size;
  Element element;  // of keys and values
  Element cache_element;
};

// Attention for consecutive sequences of a step. A sequence's last query is its last token.
struct AttentionCall {
  const void* queries;  // [tokens][head][head_size], tokens query_stride apart
  const void* kv_cache;
  void* out;            // like the queries
  int64_t query_stride;  // strides in elements, a multiple of 16 bytes
  int64_t out_stride;
  const int32_t* block_tables;     // [sequences, block_tables_stride]
  const int32_t* query_start_loc;  // [sequences + 1]
  const int32_t* seq_lens;         // [sequences]
  int64_t block_tables_stride;
  // Partial results of split contexts (see Split): [tokens][head][max_splits] of head_size sums,
  // and of {maximum, sum}. Tokens are counted from the first token of the first sequence.
  float* partial_sums;
  float* partial_stats;
  const int32_t* split_size;  // keys of a split, in device memory, so that it can change between
                              // replays of a graph; null if max_splits is 1
  int32_t max_splits;         // 1: no context is split
  int32_t first_sequence;
  int32_t num_sequences;
  int32_t max_query_len;
  int32_t num_heads;
  int32_t num_kv_heads;
  int32_t head_size;
  int32_t block_size;
  int32_t sliding_window;  // number of keys that a query sees, its own included; 0: all earlier
  float scale;             // above 0
  float logits_soft_cap;   // 0: none
  Element element;  // of queries and output
  Element cache_element;
};

}  // namespace tokenmill

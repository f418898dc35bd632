// The addresses of queries and keys, and which queries see which keys.
#pragma once

#include "calls.h"
#include "platform.h"

namespace tokenmill {

constexpr float kLog2E = 1.4426950408889634f;

// Keys [begin, end) of a sequence.
struct Keys {
  int32_t begin;
  int32_t end;
};

// One sequence for one KV head. Its rows are the query heads that share the KV head, for all of its
// queries: row r is head r % group of query r / group. So all rows of a tile share each key read.
struct Sequence {
  const AttentionCall& call;
  int32_t kv_head;
  int32_t group;
  int32_t first_token;     // of the batch
  int32_t first_position;  // of the first query in the sequence
  int32_t num_rows;
  const int32_t* block_table;

  __device__ __forceinline__ Sequence(const AttentionCall& call, int index, int kv_head)
      : call(call), kv_head(kv_head), group(call.num_heads / call.num_kv_heads) {
    const int sequence = call.first_sequence + index;
    first_token = call.query_start_loc[sequence];
    const int queries = call.query_start_loc[sequence + 1] - first_token;
    first_position = call.seq_lens[sequence] - queries;
    num_rows = queries * group;
    block_table = call.block_tables + sequence * call.block_tables_stride;
  }

  __device__ __forceinline__ int position(int row) const { return first_position + row / group; }

  // The keys that at least one of the rows [first_row, last_row] sees.
  __device__ __forceinline__ Keys visible(int first_row, int last_row) const {
    return {first_visible(position(first_row)), position(last_row) + 1};
  }

  __device__ __forceinline__ int first_visible(int position) const {
    const int window = call.sliding_window;
    return window > 0 && position >= window ? position - window + 1 : 0;
  }

  // The offset, in elements, of a row's query or output in the batch.
  __device__ __forceinline__ int64_t offset(int row, int64_t stride) const {
    return (first_token + row / group) * stride + head(row) * int64_t(call.head_size);
  }

  __device__ __forceinline__ int head(int row) const { return kv_head * group + row % group; }

  // The cache row of a key; its value is block_size rows further on.
  __device__ __forceinline__ int32_t cache_row(int key) const {
    const int block = key / call.block_size;
    const int slot = key - block * call.block_size;
    return (block_table[block] * call.num_kv_heads + kv_head) * 2 * call.block_size + slot;
  }
};

// One of the spans of split_size keys into which a sequence's context is divided. The result of a
// single split is written to the output. Several splits write partial results, which are merged.
struct Split {
  int32_t index;
  int32_t count;
  Keys keys;

  __device__ __forceinline__ Split(const Sequence& sequence, int index) : index(index) {
    const Keys all = sequence.visible(0, sequence.num_rows - 1);
    const int length = all.end - all.begin;
    const int splits = sequence.call.max_splits;
    const int least = (length + splits - 1) / splits;  // or there would be more than max_splits
    const int size = splits == 1 ? length : max(*sequence.call.split_size, least);
    count = length > size ? (length + size - 1) / size : 1;
    keys.begin = all.begin + index * size;
    keys.end = all.end - keys.begin > size ? keys.begin + size : all.end;
  }

  // The index of a row's partial result.
  __device__ __forceinline__ int64_t place(const Sequence& sequence, int row) const {
    const AttentionCall& call = sequence.call;
    const int64_t token = sequence.first_token - call.query_start_loc[call.first_sequence] +
                          row / sequence.group;
    return (token * call.num_heads + sequence.head(row)) * call.max_splits + index;
  }
};

// Computes scores in units of exp2: the product of query and key, capped or not, times `factor`.
struct Scoring {
  float factor;
  float cap;  // 0: none
  float into_cap;

  __device__ __forceinline__ explicit Scoring(const AttentionCall& call)
      : factor(call.logits_soft_cap > 0 ? 1.0f : call.scale * kLog2E),
        cap(call.logits_soft_cap * kLog2E),
        into_cap(call.logits_soft_cap > 0 ? call.scale / call.logits_soft_cap : 0.0f) {}

  // cap * tanh by exp2: its absolute error is that of float; the tanh instruction has 11 bits.
  __device__ __forceinline__ float bend(float product) const {
    const float e = exp2f(product * into_cap * (2 * kLog2E));
    return cap * (1.0f - 2.0f / (e + 1.0f));
  }
};

}  // namespace tokenmill

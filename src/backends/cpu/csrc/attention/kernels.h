// The kernels of attention, which depend on the instruction set.
#pragma once

#include "attention/attention.h"

namespace tokenmill {

// Keys [begin, end) of one sequence and KV head; begin is a multiple of the group size.
struct KeyRange {
  const int32_t* blocks;
  const uint8_t* cache;  // of the KV head, in block 0
  int64_t begin;
  int64_t end;
};

// Unnormalized softmax over some keys. Weights are 2^(logit - maximum); logits are in units of
// log 2.
struct SoftmaxState {
  float* maximum;  // [rows]
  float* sum;      // [rows]
  float* out;      // [rows, head_size]
};

// One tile over one chunk of keys. A row is a (query, head of the group) pair; the heads of a query
// are adjacent.
struct ChunkCall {
  const AttentionSpec* spec;
  CacheLayout layout;
  const void* q;  // packed
  int rows;
  int group_size;  // query heads of a KV head
  int64_t first_position;
  const int32_t* last_keys;  // [queries], or null: see AttentionBatch
  KeyRange keys;
  KeyRange next_keys;  // keys that are read after this chunk, to prefetch; may be empty
  SoftmaxState state;  // overwritten
  float* lane_sums;    // [rows, 16], scratch memory
};

struct PackCall {
  const void* q;  // the first query's first head of the group
  int64_t q_stride;
  int rows;
  int group_size;
  int head_size;
  void* packed;  // [rows, head_size], in the type that the kernels multiply: up to 4 bytes each
};

struct AttentionKernels {
  void (*pack[2])(const PackCall&);  // by Element
  void (*attend[2])(const ChunkCall&);
  // Merges the softmax of `more` into `state`.
  void (*merge)(const SoftmaxState& state, const SoftmaxState& more, int rows, int head_size);
  // Writes one normalized row.
  void (*finish[2])(const float* out, float sum, int head_size, void* target);
};

// The kernels of the instruction set that this library is compiled for.
const AttentionKernels& attention_kernels();

}  // namespace tokenmill

// What attention needs of an instruction set.
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

// Softmax over some keys, unnormalized: weights are 2^(logit - maximum), logits in units of log 2.
struct SoftmaxState {
  float* maximum;  // [rows]
  float* sum;      // [rows]
  float* out;      // [rows, head_size]
};

// Rows are (query, head of the group), the heads of a query side by side.
struct ChunkCall {
  const AttentionSpec* spec;
  CacheLayout layout;
  const void* q;  // packed
  int rows;
  int group_size;  // query heads of a KV head
  int64_t first_position;
  KeyRange keys;
  KeyRange next_keys;  // what will be read after this chunk; may be empty
  SoftmaxState state;  // overwritten
  float* lane_sums;    // [rows, 16], to work in
};

struct PackCall {
  const void* q;  // the first query's first head of the group
  int64_t q_stride;
  int rows;
  int group_size;
  int head_size;
  void* packed;  // [rows, head_size], as the kernels multiply them: up to 4 bytes each
};

struct AttentionKernels {
  void (*pack[2])(const PackCall&);  // by Element
  void (*attend[2])(const ChunkCall&);
  // Adds the keys of `more` to those of `state`.
  void (*merge)(const SoftmaxState& state, const SoftmaxState& more, int rows, int head_size);
  // Writes one normalized row.
  void (*finish[2])(const float* out, float sum, int head_size, void* target);
};

// Those of the instruction set that this library is compiled for.
const AttentionKernels& attention_kernels();

}  // namespace tokenmill

// What a decoder does beside products and attention: norms, rotation, embeddings.
//
// All of it is computed in float. Where a model computed step by step rounds to its element type
// between two steps, as transformers does, so do these; what they fuse they round once.
#pragma once

#include "attention/attention.h"

namespace tokenmill {

// Per row: out = weight * (x / sqrt(mean(x^2) + eps)), the quotient rounded before the weight is
// applied. x and out are bfloat16.
struct RmsNormCall {
  const void* x;
  int64_t x_stride;     // in elements, as are all strides
  const float* weight;  // [size]
  void* out;            // may be x
  int64_t out_stride;
  int64_t size;
  float eps;
};
void rms_norm(const RmsNormCall& call, int64_t row_begin, int64_t row_end);

// Rows of a table of bfloat16 by token id.
struct EmbedCall {
  const void* table;  // [vocabulary, size]
  const int64_t* token_ids;
  void* out;
  int64_t out_stride;
  int64_t size;
};
void embed(const EmbedCall& call, int64_t row_begin, int64_t row_end);

// Per token: norm of each head of q and k (if there are weights), their rotation (if there are
// angles), and the copy of k and v into the cache. q is changed in place; k and v are left alone.
// Layout shared with structures.py.
struct RotateAndWriteCall {
  AttentionSpec spec;
  void* q;  // heads of a token are contiguous, as in k and v; unused if there is nothing to do
  int64_t q_stride;
  const void* k;
  int64_t k_stride;
  const void* v;
  int64_t v_stride;
  const float* q_norm;  // [head_size], or null
  const float* k_norm;
  float eps;
  const float* cos;  // [positions, head_size / 2], or null
  const float* sin;
  const int64_t* positions;  // [tokens]; unused without angles
  const int64_t* slots;      // [tokens]: block * block_size + slot
  void* kv_cache;
};
// For tokens and KV heads, side by side: index = token * num_kv_heads + kv_head.
void rotate_and_write(const RotateAndWriteCall& call, int64_t begin, int64_t end);

}  // namespace tokenmill

// What a decoder does beside products and attention: norms, rotation, activations, embeddings.
//
// All of it is computed in float. Where a model computed step by step rounds to its element type
// between two steps, as transformers does, so do these; what they fuse they round once.
#pragma once

#include "attention.h"

namespace tokenmill {

// Per row: out = weight * (x / sqrt(mean(x^2) + eps)), the quotient rounded before the weight is
// applied. With `delta`, x += delta comes first; the sum is rounded and kept in x.
struct RmsNormCall {
  void* x;
  int64_t x_stride;  // in elements, as are all strides
  const void* delta;  // null: nothing is added
  int64_t delta_stride;
  const float* weight;  // [size]
  void* out;            // may be x
  int64_t out_stride;
  int64_t size;
  float eps;
  Element element;
};
void rms_norm(const RmsNormCall& call, int64_t row_begin, int64_t row_end);

enum class Activation : int32_t { kSilu = 0, kGelu = 1, kGeluTanh = 2 };

// Per row: out = activation(gate) * up, the activation rounded before it is multiplied.
struct ActivateCall {
  const void* gate;
  const void* up;
  int64_t stride;  // of both
  void* out;
  int64_t out_stride;
  int64_t size;
  Activation activation;
  Element element;
};
void activate(const ActivateCall& call, int64_t row_begin, int64_t row_end);

// Rows of a table by token id. A bfloat16 table may be read into float.
struct EmbedCall {
  const void* table;  // [vocabulary, size]
  Element table_element;
  Element out_element;
  const int64_t* token_ids;
  void* out;
  int64_t out_stride;
  int64_t size;
};
void embed(const EmbedCall& call, int64_t row_begin, int64_t row_end);

// Per token: norm of each head of q and k (if there are weights), their rotation (if there are
// angles), and the copy of k and v into the cache. q is changed in place; k and v are left alone.
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

// Operations of a decoder other than products and attention: norms, rotation, embeddings.
//
// They compute in float. Between two operations they round to the model's element type, as
// transformers does. Fused operations round only once.
#pragma once

#include "attention/attention.h"

namespace tokenmill {

// RMS norm of each row: out (+)= weight * (x / sqrt(mean(x^2) + eps)). The quotient is rounded before
// the weight is applied, unless float32_norm. x and out have one element type.
struct RmsNormCall {
  Element element;
  const void* x;
  int64_t x_stride;     // in elements, as are all strides
  const float* weight;  // [size]
  void* out;            // may be x
  int64_t out_stride;
  int64_t size;
  float eps;
  bool float32_norm;
  bool add_to_out;  // adds the result to out (the residual), rounded once
  // mean(x^2) of all rows, if a row of x is a part of a vector. Null: it is computed for each row.
  const float* mean_square;
};
void rms_norm(const RmsNormCall& call, int64_t row_begin, int64_t row_end);
float sum_of_squares(Element element, const void* x, int64_t size);

// The rows of tokens: those of a table of the model's element type, or of packed weights.
// structures.py has the same layout.
struct Embedding {
  const void* table;           // [vocabulary, size], or null
  const PackedLinear* packed;  // or null: there is a table, or no embedding at all

  bool exists() const { return table != nullptr || packed != nullptr; }
};

// Writes rows of an embedding by token id, rounded to an element type, times a factor.
struct EmbedCall {
  Element element;
  Embedding embedding;
  const int64_t* token_ids;
  void* out;
  int64_t out_stride;
  int64_t size;
  float scale;
};
void embed(const EmbedCall& call, int64_t row_begin, int64_t row_end);

// out (+)= sum of weights[i] * x[rows[i]], rounded once.
struct WeightedRowsCall {
  Element element;      // of x
  const void* x;        // [any rows, size], contiguous
  const int32_t* rows;  // negative ones are left out
  const float* weights;
  int64_t count;
  void* out;  // [size]
  Element out_type;
  int64_t size;
  bool add_to_out;
};
void add_weighted_rows(const WeightedRowsCall& call);

// out = (up + 1) * gate * sigmoid(alpha * gate), where gate is at most `limit`, and up is between it
// and its negative.
struct ClampedGateCall {
  Element element;
  const void* both;  // [rows, 2 * size], contiguous
  void* out;         // [rows, size], contiguous
  int64_t size;      // a multiple of 16
  float limit;
  float alpha;
  bool is_interleaved;  // gate and up alternate, instead of gate before up
};
void clamped_gate(const ClampedGateCall& call, int64_t row_begin, int64_t row_end);

// For each token: normalizes each head of q and k (if there are weights), rotates them (if there
// are angles), and writes k and v to the cache. q is changed in place; k and v are not changed.
// structures.py has the same layout.
struct RotateAndWriteCall {
  AttentionSpec spec;
  void* q;  // heads of a token are contiguous, as in k and v; unused without norms and angles
  int64_t q_stride;
  const void* k;
  int64_t k_stride;
  const void* v;
  int64_t v_stride;
  const float* q_norm;  // [head_size], or null
  const float* k_norm;
  float eps;
  int32_t float32_norms;  // as RmsNormCall::float32_norm
  int32_t rotary_size;    // elements of a head that are rotated: a multiple of 16
  const float* cos;       // [positions, rotary_size / 2], or null
  const float* sin;
  const int64_t* positions;  // [tokens]; unused without angles
  const int64_t* slots;      // [tokens]: block * block_size + slot
  void* kv_cache;
};
// Runs for pairs of token and KV head [begin, end): index = token * num_kv_heads + kv_head.
void rotate_and_write(const RotateAndWriteCall& call, int64_t begin, int64_t end);

}  // namespace tokenmill

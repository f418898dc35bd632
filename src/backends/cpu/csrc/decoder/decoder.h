// A whole decoder of the Llama family for one flat batch: every layer in one parallel region.
#pragma once

#include "elementwise/elementwise.h"
#include "linear/linear.h"

namespace tokenmill {

// Layout shared with structures.py, as are all structures here.
struct DecoderLayer {
  const float* input_norm;           // [hidden]
  const float* post_attention_norm;  // [hidden]
  const float* q_norm;               // [head_size], or null
  const float* k_norm;
  const PackedLinear* qkv;  // heads of q, then k, then v
  const float* qkv_bias;    // or null, as are all biases
  const PackedLinear* attention_output;
  const float* attention_output_bias;
  const PackedLinear* gate_up;  // with its activation inside
  const float* gate_up_bias;
  const PackedLinear* down;
  const float* down_bias;
};

struct DecoderModel {
  AttentionSpec spec;
  int64_t num_layers;
  const DecoderLayer* layers;
  int64_t hidden_size;
  int64_t intermediate_size;
  const void* embedding;  // bfloat16 [vocabulary, hidden]
  const float* norm;      // [hidden]
  const PackedLinear* head;
  const float* cos;  // [positions, head_size / 2]
  const float* sin;
  float eps;
};

// Where a step's time goes. Shared with decoder_call.py.
enum class Phase {
  kEmbed,
  kNorm,
  kQkv,
  kRotateAndWrite,
  kAttention,
  kAttentionOutput,
  kGateUp,
  kDown,
  kLogits,
  kWait
};

// One step. Scratch is bfloat16, a row per token, without gaps.
struct DecoderStep {
  int64_t num_tokens;
  const int64_t* token_ids;
  const int64_t* positions;
  const int64_t* slots;
  AttentionPlan* plan;
  void* const* kv_caches;  // one per layer
  void* hidden;            // [tokens, hidden]
  void* normed;            // [tokens, hidden]
  void* qkv;               // [tokens, all heads * head_size]
  void* attended;          // [tokens, query heads * head_size]
  void* inner;             // [tokens, intermediate]
  int64_t num_sampled;
  const int64_t* sampled_rows;
  void* sampled;  // [sampled, hidden]
  float* logits;  // [sampled, vocabulary]
  // A counter per phase, to which the time of worker 0 is added, or null; kWait is what it waits
  // for the others.
  int64_t* nanoseconds;
};

void run_decoder(const DecoderModel& model, const DecoderStep& step);

}  // namespace tokenmill

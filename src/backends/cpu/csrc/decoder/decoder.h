// A whole decoder for one flat batch, with all layers in one parallel region.
#pragma once

#include "decoder/experts.h"
#include "elementwise/elementwise.h"
#include "linear/linear.h"
#include "ranks/ranks.h"

namespace tokenmill {

// The weights of one layer. structures.py has the same layout of all structures in this file.
struct DecoderLayer {
  const float* input_norm;                // [hidden], like all norms except those of heads
  const float* attention_output_norm;     // before the output is added to the hidden state; or null
  const float* post_attention_norm;
  const float* feed_forward_output_norm;  // before the output is added to the hidden state; or null
  const float* q_norm;                    // [head_size], or null
  const float* k_norm;
  // [query heads * head_size]: a norm over all heads, those of other ranks included; or null
  const float* whole_q_norm;
  const float* whole_k_norm;
  const float* cos;  // [positions, rotary_size / 2], or null: q and k are not rotated
  const float* sin;
  const float* sinks;       // as AttentionCall::sinks
  int64_t plan;             // index in DecoderStep::plans and DecoderStep::slots
  const PackedLinear* qkv;  // heads of q, then k, then v
  const float* qkv_bias;    // or null, as are all biases
  const PackedLinear* attention_output;
  const float* attention_output_bias;
  const PackedLinear* gate_up;  // includes the activation
  const float* gate_up_bias;
  const PackedLinear* down;
  const float* down_bias;
  // Instead of gate_up and down. With a router to logits [experts].
  const Expert* experts;
  const PackedLinear* router;
  const float* router_bias;
};

// A model, or one of its stages: some layers, and the embedding, or the last norm and the head, or
// neither. Embedding and hidden states have the element type of `spec`.
struct DecoderModel {
  AttentionSpec spec;  // the windows of layers are in their plans
  ExpertsSpec experts;
  int64_t num_layers;
  const DecoderLayer* layers;
  int64_t hidden_size;
  int64_t intermediate_size;
  Embedding embedding;       // [vocabulary, hidden]; none in a later stage
  const float* norm;         // [hidden]; null in a stage without a head
  const PackedLinear* head;  // or null: steps have no sampled rows
  float eps;
  int32_t float32_norms;  // as RmsNormCall::float32_norm
  int32_t rotary_size;
  float embedding_scale;
  // Null: this process has the whole model. Otherwise the products attention_output and down, and the
  // results of experts, are partial sums, which the ranks add up.
  const Ranks* ranks;
  const int64_t* first_logits;  // with ranks: [size + 1], the first logit of each rank's head
  // With ranks and norms over all heads: sizes of q and k on all ranks together.
  int64_t whole_q_size;
  int64_t whole_k_size;
};

// Phases of a step whose times are measured. decoder_call.py has the same list.
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

// Inputs, scratch memory and outputs of one step. Scratch memory is contiguous, with a row per token
// and the model's element type.
struct DecoderStep {
  int64_t num_tokens;
  const int64_t* token_ids;
  const int64_t* positions;
  const int64_t* const* slots;  // per plan: the slot of each token
  AttentionPlan* const* plans;  // one per kind of layer
  void* const* kv_caches;  // one per layer
  void* hidden;            // [tokens, hidden]: without an embedding, also the input
  void* normed;            // [tokens, hidden]
  void* qkv;               // [tokens, all heads * head_size]
  void* attended;          // [tokens, query heads * head_size]
  void* inner;             // [tokens, intermediate]
  int64_t num_sampled;
  const int64_t* sampled_rows;
  void* sampled;  // [sampled, hidden]
  float* logits;  // [sampled, all logits]
  // A counter per phase, or null. The time of worker 0 is added; kWait is its time at barriers.
  int64_t* nanoseconds;
  // A counter per expert, or null. The tokens that choose the expert are added, of all layers.
  int64_t* expert_tokens;
  // Room for 3 + 4 * layers times, or null. See Part::run for the regions of a step that begin and
  // end at these times, in nanoseconds of one clock. Waiting for other workers and ranks is a part of
  // the region in which worker 0 waits.
  int64_t* marks;
};

void run_decoder(const DecoderModel& model, const DecoderStep& step);

}  // namespace tokenmill

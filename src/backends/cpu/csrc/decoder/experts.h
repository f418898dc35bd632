// The feed-forward of layers with experts: gated networks, of which each token uses a few.
#pragma once

#include <vector>

#include "linear/linear.h"

namespace tokenmill {

// structures.py has the same layout, and that of ExpertsSpec. The weights of an expert are null if
// another rank computes it.
struct Expert {
  const PackedLinear* gate_up;  // includes the activation, unless ExpertsSpec has a limit
  const float* gate_up_bias;    // or null, as is down_bias
  const PackedLinear* down;
  const float* down_bias;
};

// The settings that the experts of all layers share.
struct ExpertsSpec {
  int64_t num_experts;  // 0: layers have no experts
  int64_t num_active;   // experts that compute a token
  int64_t intermediate_size;
  int32_t normalizes_shares;  // the shares of a token's experts are divided by their sum
  // Above 0: experts compute (up + 1) * gate * sigmoid(alpha * gate), where gate is at most this
  // number and up is between it and its negative. intermediate_size is then a multiple of 16.
  float gate_limit;
  float gate_alpha;
  int32_t is_interleaved;  // with a limit: gate and up alternate, instead of gate before up
};

// Memory for one step, which all workers share. A pair is a token and one of its experts.
struct ExpertsMemory {
  float* logits;     // [tokens, experts]
  int32_t* chosen;   // [tokens, active]: in ascending order
  float* shares;     // [tokens, active]
  Element element;  // of inputs, both and inner
  uint8_t* inputs;  // [pairs, hidden], sorted by expert; later the experts' outputs
  uint8_t* both;    // [pairs, 2 * intermediate]; null without a limit
  uint8_t* inner;   // [pairs, intermediate]
};

// Memory of the calling thread, which the next call overwrites. Throws std::bad_alloc.
ExpertsMemory take_experts_memory(const ExpertsSpec& spec, Element element, int64_t tokens,
                                  int64_t hidden_size);

// One worker's part of a step. The methods are called in the order of their declaration, with a
// barrier after each.
class ExpertsPart {
 public:
  ExpertsPart(const ExpertsSpec& spec, const ExpertsMemory& memory, int64_t tokens,
              int64_t hidden_size, int worker, int workers);

  // Computes the router's logits. x: [tokens, hidden], contiguous.
  void route(const PackedLinear* router, const float* bias, const void* x);
  // Chooses each token's experts and their shares.
  void choose();
  // Adds each expert's tokens to its counter. Only one worker does this, instead of a barrier.
  void count(int64_t* counters) const;
  // Copies the inputs of each expert of this rank side by side.
  void gather(const Expert* experts, const void* x);
  void gate_up(const Expert* experts);
  // With a limit only.
  void apply_gate();
  void down(const Expert* experts);
  // out (+)= the sum of the experts' outputs times their shares, of `count` tokens from `first` on.
  // out: contiguous, with a row for each of these tokens.
  void combine(int64_t first, int64_t count, void* out, Element out_type, bool add) const;

 private:
  void sort(const Expert* experts);
  // Calls `product(expert, first pair, pairs)` for each expert that has pairs.
  template <class Product>
  void for_experts(Product product) const;

  const ExpertsSpec& spec_;
  const ExpertsMemory& memory_;
  const int64_t tokens_, hidden_size_, element_bytes_;
  const int worker_, workers_;
  std::vector<int32_t> starts_;  // [experts + 1]: the first sorted pair of each expert
  // [tokens, active]: of the pair among the sorted pairs; -1 if another rank has the expert.
  std::vector<int32_t> places_;
};

}  // namespace tokenmill

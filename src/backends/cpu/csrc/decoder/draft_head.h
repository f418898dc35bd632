// A draft head in one parallel region. It runs between steps, when the model's weights have evicted
// everything else from the caches. A separate call per operation would cost more than the
// arithmetic.
#pragma once

#include "elementwise/elementwise.h"

namespace tokenmill {

// The weights of a draft head. structures.py has the same layout, and that of DraftHeadStep.
struct DraftHeadModel {
  int64_t hidden_size;
  int64_t intermediate_size;
  Embedding embedding;  // [vocabulary, hidden]
  const float* ones;      // [hidden]: weights of the norms of the inputs, which have none
  const float* norm;      // [hidden]
  const PackedLinear* fc;
  const PackedLinear* gate_up;  // includes the activation
  const PackedLinear* down;
  const PackedLinear* head;
  float eps;
};

// Drafts one token for each row. Scratch memory is contiguous bfloat16.
struct DraftHeadStep {
  int64_t num_rows;
  const int64_t* token_ids;
  void* state;     // [rows, hidden]; overwritten by the next state
  void* both;      // [rows, 2 * hidden]: state and embedding
  void* inner;     // [rows, intermediate]
  void* normed;    // [rows, hidden]
  float* logits;   // [rows, logits of the head]
};

void run_draft_head(const DraftHeadModel& model, const DraftHeadStep& step);

}  // namespace tokenmill

// A draft head in one parallel region: called between steps, whose weights have pushed everything
// else out of the caches, each operation of its own would cost more than its arithmetic.
#pragma once

#include "linear/linear.h"

namespace tokenmill {

// Layout shared with structures.py, as is that of DraftHeadStep.
struct DraftHeadModel {
  int64_t hidden_size;
  int64_t intermediate_size;
  const void* embedding;  // bfloat16 [vocabulary, hidden]
  const float* ones;      // [hidden]: inputs are only brought to size 1
  const float* norm;      // [hidden]
  const PackedLinear* fc;
  const PackedLinear* gate_up;  // with its activation inside
  const PackedLinear* down;
  const PackedLinear* head;
  float eps;
};

// One token more for each row. Scratch is bfloat16, without gaps.
struct DraftHeadStep {
  int64_t num_rows;
  const int64_t* token_ids;
  void* state;     // [rows, hidden]; the next state takes its place
  void* both;      // [rows, 2 * hidden]: state and embedding
  void* inner;     // [rows, intermediate]
  void* normed;    // [rows, hidden]
  float* logits;   // [rows, logits of the head]
};

void run_draft_head(const DraftHeadModel& model, const DraftHeadStep& step);

}  // namespace tokenmill

// Drawing tokens from rows of logits, and putting drafts to the test.
//
// A row's result depends on the row, its parameters, its seed and its position alone: sums are made
// in one order, whatever the number of rows or threads.
#pragma once

#include <cstdint>

namespace tokenmill {

// How a row is drawn from. Layout shared with structures.py, as is that of all structures here.
struct DrawnRow {
  int64_t row;        // of the logits
  int64_t seed;       // with the purpose in it
  double top_p;       // 1 or more keeps all
  int64_t top_k;      // the number of logits keeps all
  float temperature;  // above 0
  float min_p;        // 0 keeps all
};

// Rows of logits, and what is drawn from some of them.
struct LogitsRows {
  const float* logits;       // [rows, size]
  int64_t size;
  const int64_t* best;       // [rows]: where the highest one is; in a row with NaN, anywhere
  const int64_t* positions;  // [rows]: of the tokens to come
  const DrawnRow* drawn;
  int64_t* token_ids;        // [rows]: the result; may be `best`
};

struct DrawCall {
  LogitsRows rows;
  int64_t count;
  float* const* probs;    // [count]: where to write what was drawn from; null: nowhere
  int64_t probs_size;
  const int64_t* places;  // [size]: of each logit among the probs; null: their order
};
void draw_rows(const DrawCall& call, int64_t begin, int64_t end);

// Drafts that were drawn from q, in sequences: up to the first that is rejected they become the
// tokens of their rows; there another token is drawn from what is left of the row's own
// distribution. Rows after that keep their tokens, which mean nothing.
struct TrialCall {
  LogitsRows rows;
  int64_t num_sequences;
  const int64_t* ends;       // [sequences]: of their drawn rows, one after the other
  const int64_t* drafts;     // [drawn rows]
  const float* const* q;     // [drawn rows]: each [size], summing to 1
  int64_t accept_purpose;    // of the noise that accepts
};
void try_drafts(const TrialCall& call, int64_t begin, int64_t end);  // sequences

}  // namespace tokenmill

// Draws tokens from rows of logits, and accepts or rejects drafts.
//
// A row's result depends only on the row, its parameters, its seed and its position. Sums are added
// in the same order for any number of rows or threads.
#pragma once

#include <cstdint>

namespace tokenmill {

// The sampling parameters of one row. structures.py has the same layout of all structures in this
// file.
struct DrawnRow {
  int64_t row;        // index of the row of logits
  int64_t seed;       // includes the purpose
  double top_p;       // 1 or more keeps all
  int64_t top_k;      // the number of logits or more keeps all
  float temperature;  // above 0
  float min_p;        // 0 keeps all
};

// Rows of logits, and the parameters of the rows from which tokens are drawn.
struct LogitsRows {
  const float* logits;       // [rows, size]
  int64_t size;
  const int64_t* best;       // [rows]: index of the largest logit; any index in a row with NaN
  const int64_t* positions;  // [rows]: positions of the tokens to be drawn
  const DrawnRow* drawn;
  int64_t* token_ids;        // [rows]: the result; may be `best`
};

struct DrawCall {
  LogitsRows rows;
  int64_t count;
  float* const* probs;    // [count]: where to write the row's probabilities, or null; may be null
  int64_t probs_size;
  const int64_t* places;  // [size]: index of each logit in `probs`; null: the same index
};
void draw_rows(const DrawCall& call, int64_t begin, int64_t end);

// Accepts or rejects drafts that were drawn from q. The drafts of a sequence become the tokens of
// their rows up to the first rejected one. That row's token is drawn from the rest of its own
// distribution, without q. The tokens of later rows of the sequence are undefined.
struct TrialCall {
  LogitsRows rows;
  int64_t num_sequences;
  const int64_t* ends;       // [sequences]: end of each sequence in `rows.drawn`, cumulative
  const int64_t* drafts;     // [drawn rows]
  const float* const* q;     // [drawn rows]: each [size], summing to 1
  int64_t accept_purpose;    // purpose of the random numbers that decide on acceptance
};
void try_drafts(const TrialCall& call, int64_t begin, int64_t end);  // of sequences

}  // namespace tokenmill

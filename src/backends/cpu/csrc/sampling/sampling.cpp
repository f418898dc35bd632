#include "sampling/sampling.h"

#include "sampling/noise.h"
#include "sampling/weighted_row.h"

namespace tokenmill {
void draw_rows(const DrawCall& call, int64_t begin, int64_t end) {
  const LogitsRows& rows = call.rows;
  for (int64_t i = begin; i < end; i++) {
    const DrawnRow& drawn = rows.drawn[i];
    const WeightedRow weighted(rows, drawn);
    const double number = uniform(drawn.seed, rows.positions[drawn.row]);
    rows.token_ids[drawn.row] = weighted.draw(number);
    float* probs = call.probs == nullptr ? nullptr : call.probs[i];
    if (probs != nullptr) weighted.write_probabilities(probs, call.probs_size, call.places);
  }
}

void try_drafts(const TrialCall& call, int64_t begin, int64_t end) {
  const LogitsRows& rows = call.rows;
  for (int64_t sequence = begin; sequence < end; sequence++) {
    for (int64_t i = sequence ? call.ends[sequence - 1] : 0; i < call.ends[sequence]; i++) {
      const DrawnRow& drawn = rows.drawn[i];
      const int64_t draft = call.drafts[i], position = rows.positions[drawn.row];
      const float* q = call.q[i];
      WeightedRow weighted(rows, drawn);
      const double number = uniform(drawn.seed ^ call.accept_purpose, position);
      const bool is_accepted = number * q[draft] < weighted.probability(draft);
      rows.token_ids[drawn.row] = draft;
      if (is_accepted) continue;
      weighted.subtract(q, draft);
      // It can be empty only if q was no distribution.
      if (!weighted.is_empty())
        rows.token_ids[drawn.row] = weighted.draw(uniform(drawn.seed, position));
      break;
    }
  }
}

}  // namespace tokenmill

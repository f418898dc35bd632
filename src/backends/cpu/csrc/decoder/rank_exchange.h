// The exchanges within a step between processes that compute one model together: partial sums,
// squares of heads, and logits.
#pragma once

#include <algorithm>

#include "decoder/decoder.h"
#include "decoder/phase_clock.h"

namespace tokenmill {

// One worker's part of the exchanges. All workers of all ranks call the methods in the same order.
class RankExchange {
 public:
  RankExchange(const DecoderModel& model, const DecoderStep& step, PhaseClock& clock, int worker,
               int workers);

  // Norms over the heads of all ranks, which add up the squares of their heads. q, in place: the
  // rank's own q and k, [tokens, q_size + 2 * k_size].
  void norm_heads(const DecoderLayer& layer, uint8_t* q, int64_t q_size, int64_t k_size);

  // out (+)= the sums of all ranks' parts, [tokens, hidden]. `compute(first, rows, part)`
  // writes the rank's own part of some rows, float32 [rows, hidden].
  template <class Compute>
  void sum(void* out, bool add, Phase phase, Compute compute) {
    const int64_t at_once = rows_at_once();
    for (int64_t first = 0; first < step_.num_tokens; first += at_once) {
      const int64_t rows = std::min(step_.num_tokens - first, at_once);
      compute(first, rows, meetings_.own_slot());
      add_up(first, rows, out, add, phase);
    }
  }

  // The rank's own columns of the logits. Rows have the logits of all ranks.
  float* own_logits() const { return step_.logits + model_.first_logits[model_.ranks->rank]; }
  int64_t num_logits() const { return model_.first_logits[meetings_.size()]; }
  // Copies the logits of all ranks to each of them, after a barrier.
  void gather_logits();

 private:
  int64_t rows_at_once() const;
  void add_up(int64_t first, int64_t rows, void* out, bool add, Phase phase);
  void norm_part(uint8_t* x, const float* weight, int64_t size, int64_t place, int64_t whole_size);
  void copy_logits(int rank, int64_t row, int64_t rows, bool to_slot);
  void meet(Phase phase);

  const DecoderModel& model_;
  const DecoderStep& step_;
  PhaseClock& clock_;
  Meetings meetings_;
  const int64_t element_bytes_;
  const int worker_;
  const int workers_;
};

}  // namespace tokenmill

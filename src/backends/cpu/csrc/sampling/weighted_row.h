// The distribution of one row, from which a token is drawn.
#pragma once

#include "sampling/sampling.h"
#include "sampling/weights.h"

namespace tokenmill {

// Its numbers are in thread-local memory: a thread may have only one WeightedRow at a time.
class WeightedRow {
 public:
  // Applies temperature and filters to the row of logits.
  WeightedRow(const LogitsRows& rows, const DrawnRow& drawn);

  // A token's probability; 0 if the filters removed it.
  float probability(int64_t token) const { return numbers_.weights[token] * scale_; }

  bool is_empty() const { return !(total_ > 0.0); }

  // Draws a token by its probability. `number` is in (0, 1).
  int64_t draw(double number) const;

  // Writes probabilities to out[token]. With `places`, to out[places[token]], and 0 elsewhere.
  void write_probabilities(float* out, int64_t out_size, const int64_t* places) const;

  // Subtracts q and keeps positive differences, without the token `refused`, which was drawn from q
  // and rejected. If no difference is positive, the two distributions differ only by rounding: then
  // all tokens except `refused` keep their weights.
  void subtract(const float* q, int64_t refused);

 private:
  // The smallest weight that the filters keep: min_p, then top_k of the rest, then top_p of the
  // rest, as in filters.py. Of equally likely tokens all or none are kept.
  float bound_of(const DrawnRow& drawn);
  double mass_from(float bound) const;
  // Copies the largest weights, of at least `least`, to values_, so that their measures add up to
  // `wanted` or more if possible. Returns their number.
  template <class Measure>
  int64_t collect(float least, double wanted, Measure measure);
  template <class Body>
  void for_each_from(float bound, Body body) const;
  void keep_from(float bound);
  void set_total();

  WeightedNumbers numbers_;  // `largest` has the values before any filter
  float* values_;
  double total_;
  float scale_;  // 1 / total
};

}  // namespace tokenmill

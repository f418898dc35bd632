// One row while a token of it is chosen.
#pragma once

#include "sampling/sampling.h"
#include "sampling/weights.h"

namespace tokenmill {

// Its numbers are in memory of the thread's own: there is one of these per thread at a time.
class WeightedRow {
 public:
  // What the row is drawn from: temperature and filters applied.
  WeightedRow(const LogitsRows& rows, const DrawnRow& drawn);

  // 0 for what the filters leave out.
  float probability(int64_t token) const { return numbers_.weights[token] * scale_; }

  bool is_empty() const { return !(total_ > 0.0); }

  // A token, each with its probability; `number` is in (0, 1).
  int64_t draw(double number) const;

  // To out[token], or out[places[token]] and 0 elsewhere.
  void write_probabilities(float* out, int64_t out_size, const int64_t* places) const;

  // Becomes what of it exceeds q, without the token that was drawn from q and refused. Where nothing
  // does, the two differ by rounding alone: then all but that token.
  void subtract(const float* q, int64_t refused);

 private:
  // min_p, then top_k of that, then top_p of what these leave, as in filters.py: of equally likely
  // tokens all or none are kept.
  float bound_of(const DrawnRow& drawn);
  double mass_from(float bound) const;
  // Copies weights of at least `least`, the greatest ones, to values_, until they measure up to what
  // is wanted; answers how many.
  template <class Measure>
  int64_t collect(float least, double wanted, Measure measure);
  template <class Body>
  void for_each_from(float bound, Body body) const;
  void keep_from(float bound);
  void set_total();

  WeightedNumbers numbers_;  // `largest` is of what there was before any filter
  float* values_;
  double total_;
  float scale_;  // 1 / total
};

}  // namespace tokenmill

// Attention of a tile's rows over a chunk of keys, for any instruction set. `Elements` loads
// numbers from the cache and multiplies them (attention/elements.h).
//
// Keys are processed in spans of 64. For a few rows at a time, it computes the scores of all keys
// of the span (16 in a register), their softmax, and the weighted sums of values (rows x 4
// accumulators). Scores and weights stay in L1.
#pragma once

#include <algorithm>
#include <cmath>

#include "attention/micro.h"
#include "threads/thread_pool.h"
#include "vectors/elements.h"

namespace tokenmill {
namespace {

constexpr float kMinusInfinity = -__builtin_inff();

// The running softmax of a tile's rows over a chunk. Sums are kept per lane until the end.
template <class Elements, bool kHalves>
class Chunk {
 public:
  explicit Chunk(const ChunkCall& call)
      : call_(call),
        tables_(tables<Elements, kHalves>()),
        head_size_(call.spec->head_size),
        is_capped_(call.spec->logits_soft_cap > 0),
        inner_factor_(is_capped_ ? call.spec->scale / call.spec->logits_soft_cap : 1.0f),
        factor_((is_capped_ ? call.spec->logits_soft_cap : call.spec->scale) * kLog2E) {}

  void run() {
    for (int row = 0; row < call_.rows; row++) call_.state.maximum[row] = kMinusInfinity;
    std::fill_n(call_.state.out, call_.rows * int64_t{head_size_}, 0.0f);
    sums_ = call_.lane_sums;
    std::fill_n(sums_, call_.rows * 16, 0.0f);
    const KeyRange& keys = call_.keys;
    const int block_size = call_.spec->block_size;
    Span here = locate(call_.layout, block_size, keys, keys.begin);
    for (int64_t begin = keys.begin; begin < keys.end; begin += kSpan) {
      Span next = here;
      if (begin + kSpan < keys.end) {
        next = locate(call_.layout, block_size, keys, begin + kSpan);
      } else if (call_.next_keys.begin < call_.next_keys.end) {
        next = locate(call_.layout, block_size, call_.next_keys, call_.next_keys.begin);
      }
      run_span(here, next, begin);
      here = next;
    }
    for (int row = 0; row < call_.rows; row++)
      call_.state.sum[row] = sum_of(load_lanes(sums_ + row * 16));
  }

 private:
  static constexpr float kLog2E = 1.44269504f;
  static constexpr float kSlack = 8.0f;

  void run_span(const Span& here, const Span& next, int64_t begin) {
    const int tiles = (call_.rows + kMaxRows - 1) / kMaxRows;
    for (int i = 0; i < tiles; i++) {
      const Share rows = share_of(call_.rows, i, tiles);
      const int first = static_cast<int>(rows.begin), count = static_cast<int>(rows.end) - first;
      const int64_t end = std::min(call_.keys.end, last_seen(first + count - 1) + 1);
      const int keys = static_cast<int>(std::min<int64_t>(kSpan, end - begin));
      if (keys <= 0 || first_seen(first) >= begin + keys) continue;
      // The first rows prefetch the next span for all rows.
      run_rows(here, i == 0 ? next : here, begin, first, count, keys);
    }
  }

  void run_rows(const Span& here, const Span& ahead, int64_t begin, int first, int count,
                int keys) {
    const int vectors = (keys + 15) / 16;
    score_rows(here, ahead, first, count, vectors);
    for (int r = 0; r < count; r++) soften(first + r, r, begin, vectors, keys);
    accumulate_rows(here, ahead, first, count, keys);
  }

  void score_rows(const Span& here, const Span& ahead, int first, int count, int vectors) {
    constexpr int kPerVector = kHalves ? 2 : 1;
    ScoreCall score = {};
    score.q = static_cast<const typename Elements::Row*>(call_.q) + int64_t{first} * head_size_;
    score.q_stride = head_size_;
    score.steps = head_size_ / Elements::kPack;
    for (int vector = 0; vector < vectors; vector += kMaxVectors) {
      score.groups = here.groups + vector * kPerVector;
      score.ahead = ahead.groups + vector * kPerVector;
      score.scores = scores_ + vector * 16;
      tables_.score[count][std::min(kMaxVectors, vectors - vector)](score);
    }
  }

  void accumulate_rows(const Span& here, const Span& ahead, int first, int count, int keys) {
    AccumulateCall accumulate = {};
    accumulate.weights = weights_;
    accumulate.groups = here.groups;
    accumulate.ahead = ahead.groups;
    accumulate.row_bytes = int64_t{head_size_} * 4;
    accumulate.group = static_cast<int>(call_.layout.group);
    accumulate.keys = keys;
    accumulate.out_stride = head_size_;
    const int vectors = head_size_ / 16;
    for (int vector = 0; vector < vectors; vector += kMaxVectors) {
      accumulate.offset = call_.layout.value_offset + vector * 64;
      accumulate.out = call_.state.out + int64_t{first} * head_size_ + vector * 16;
      tables_.accumulate[count][std::min(kMaxVectors, vectors - vector)](accumulate);
    }
  }

  int64_t position_of(int row) const { return call_.first_position + row / call_.group_size; }
  int64_t last_seen(int row) const {
    return call_.last_keys == nullptr ? position_of(row) : call_.last_keys[row / call_.group_size];
  }
  int64_t first_seen(int row) const {
    const int64_t window = call_.spec->sliding_window;
    return window > 0 ? position_of(row) + 1 - window : 0;
  }

  // Turns the scores of one row into weights.
  void soften(int row, int r, int64_t begin, int vectors, int keys) {
    Lanes scores[kSpanVectors];
    for (int c = 0; c < vectors; c++) scores[c] = capped(load_lanes(scores_ + r * kSpan + c * 16));
    const int low = static_cast<int>(std::max<int64_t>(0, first_seen(row) - begin));
    const int high = static_cast<int>(std::min<int64_t>(keys, last_seen(row) + 1 - begin));
    if (low > 0 || high < vectors * 16)
      for (int c = 0; c < vectors; c++)
        scores[c] = choose(low - c * 16, high - c * 16, scores[c], splat(kMinusInfinity));
    raise_maximum(row, scores, vectors);
    const float maximum = call_.state.maximum[row];
    const Lanes shift = splat(maximum == kMinusInfinity ? 0.0f : -maximum);
    Lanes sum = load_lanes(sums_ + row * 16);
    for (int c = 0; c < vectors; c++) {
      const Lanes logits = fused(scores[c], splat(factor_), shift);
      const Lanes weights = each([](Floats x) { return exp2_of<Elements::kExpDegree>(x); }, logits);
      sum = sum + weights;
      Elements::store_row(weights_ + r * kSpan + c * 16, weights);
    }
    store_lanes(sums_ + row * 16, sum);
  }

  TM_INLINE Lanes capped(const Lanes& score) const {
    if (!is_capped_) return score;
    return each([](Floats x) { return tanh_of(x); }, score * splat(inner_factor_));
  }

  // Weights are relative to the largest logit so far, but only roughly. Sums are rescaled only when
  // a weight would exceed 2^8, which costs no precision.
  TM_INLINE void raise_maximum(int row, const Lanes* scores, int vectors) {
    Lanes most = scores[0];
    for (int c = 1; c < vectors; c++) most = largest(most, scores[c]);
    most = most * splat(factor_);
    if (any_above(most, call_.state.maximum[row] + kSlack)) scale_anew(row, largest_of(most));
  }

  __attribute__((noinline)) void scale_anew(int row, float maximum) {
    float& current = call_.state.maximum[row];
    const float before = current;
    current = maximum;
    if (before == kMinusInfinity) return;
    const Lanes factor = splat(std::exp2(before - maximum));
    store_lanes(sums_ + row * 16, load_lanes(sums_ + row * 16) * factor);
    float* out = call_.state.out + int64_t{row} * head_size_;
    for (int i = 0; i < head_size_; i += 16) store_lanes(out + i, load_lanes(out + i) * factor);
  }

  const ChunkCall& call_;
  const Tables<Elements, kHalves>& tables_;
  const int head_size_;
  const bool is_capped_;
  const float inner_factor_, factor_;
  float* sums_ = nullptr;  // [rows, 16]
  alignas(64) float scores_[kMaxRows * kSpan];
  alignas(64) typename Elements::Row weights_[kMaxRows * kSpan];
};

template <class Elements>
void attend(const ChunkCall& call) {
  if (call.layout.group == 16) {
    Chunk<Elements, false>(call).run();
  } else {
    Chunk<Elements, true>(call).run();
  }
}

// Copies the rows one after the other, in the type that the kernels multiply.
template <class Elements>
void pack(const PackCall& call) {
  const auto* q = static_cast<const typename Elements::Given*>(call.q);
  auto* packed = static_cast<typename Elements::Row*>(call.packed);
  const int64_t group_elements = int64_t{call.group_size} * call.head_size;
  for (int query = 0; query < call.rows / call.group_size; query++)
    Elements::pack(q + query * call.q_stride, group_elements, packed + query * group_elements);
}

void merge(const SoftmaxState& state, const SoftmaxState& more, int rows, int head_size) {
  for (int row = 0; row < rows; row++) {
    const float maximum = std::max(state.maximum[row], more.maximum[row]);
    if (maximum == kMinusInfinity) continue;
    const float mine = std::exp2(state.maximum[row] - maximum);
    const float its = std::exp2(more.maximum[row] - maximum);
    state.maximum[row] = maximum;
    state.sum[row] = state.sum[row] * mine + more.sum[row] * its;
    float* out = state.out + int64_t{row} * head_size;
    const float* other = more.out + int64_t{row} * head_size;
    for (int i = 0; i < head_size; i += 16)
      store_lanes(out + i,
                  fused(load_lanes(out + i), splat(mine), load_lanes(other + i) * splat(its)));
  }
}

template <class Out>
void finish_row(const float* out, float sum, int head_size, void* target) {
  auto* to = static_cast<Out*>(target);
  const float factor = 1.0f / sum;
  for (int i = 0; i < head_size; i += TM_WIDTH)
    store_floats(to + i, load_vector<Floats>(out + i) * factor);
}

}  // namespace
}  // namespace tokenmill

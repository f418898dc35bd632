// Attention of a tile's rows over a chunk of keys, for any instruction set: `Elements` says how
// numbers are fetched from the cache and multiplied (attention_elements.h).
//
// 64 keys are taken at a time (a span). For each few rows: scores of all keys, 16 in a register;
// their softmax; sums of values, with rows x 4 accumulators. Scores and weights never leave L1.
#pragma once

#include <algorithm>

#include "attention_kernels.h"
#include "thread_pool.h"
#include "wide.h"

namespace tokenmill {
namespace {

constexpr int kSpan = 64;
constexpr int kSpanVectors = kSpan / 16;
constexpr int kMaxGroups = kSpan / 8;
#if TM_WIDTH == 16
constexpr int kMaxRows = 6, kMaxVectors = 4;  // 24 accumulators of 32 registers
#elif TM_WIDTH == 8
constexpr int kMaxRows = 3, kMaxVectors = 2;
#else
constexpr int kMaxRows = 3, kMaxVectors = 1;
#endif
constexpr float kMinusInfinity = -__builtin_inff();

// Where the keys of up to 64 tokens lie, group by group. Unused entries repeat the last one.
struct Span {
  const uint8_t* groups[kMaxGroups];
};

TM_INLINE Span locate(const CacheLayout& layout, int block_size, const KeyRange& keys,
                      int64_t begin) {
  Span span;
  const int groups = kSpan / static_cast<int>(layout.group);
  int64_t block = begin / block_size, slot = begin % block_size;
  const uint8_t* at = nullptr;
  for (int i = 0; i < groups; i++) {
    if (begin + i * layout.group < keys.end)
      at = keys.cache + keys.blocks[block] * layout.block_bytes + slot * layout.token_bytes;
    span.groups[i] = at;
    slot += layout.group;
    if (slot == block_size) {
      slot = 0;
      block++;
    }
  }
  return span;
}

struct ScoreCall {
  const void* q;  // [rows, q_stride]
  int64_t q_stride;
  const uint8_t* const* groups;
  const uint8_t* const* ahead;  // read ahead at the same places
  int64_t steps;
  float* scores;  // [rows, kSpan]
};

template <class Elements, int kRows, int kVectors, bool kHalves>
void score(const ScoreCall& call) {
  constexpr int64_t kStep = kHalves ? 32 : 64;
  constexpr int kPerVector = kHalves ? 2 : 1;
  // Rows are addressed from every third one, since an x86 address takes an index times 1 or 2:
  // fewer pointers to keep in registers.
  constexpr int kBases = (kRows + 2) / 3;
  const int64_t stride = call.q_stride;
  const typename Elements::Row* q[kBases];
  TM_UNROLL for (int i = 0; i < kBases; i++)
    q[i] = static_cast<const typename Elements::Row*>(call.q) + 3 * i * stride;
  typename Elements::Sum sums[kRows][kVectors];
  TM_UNROLL for (int r = 0; r < kRows; r++)
    TM_UNROLL for (int c = 0; c < kVectors; c++) sums[r][c] = Elements::zero();
  const uint8_t* groups[kVectors * kPerVector];
  const uint8_t* ahead[kVectors * kPerVector];
  TM_UNROLL for (int c = 0; c < kVectors * kPerVector; c++) {
    groups[c] = call.groups[c];
    ahead[c] = call.ahead[c];
  }
  for (int64_t at = 0; at < call.steps * kStep; at += kStep) {
    typename Elements::Vector keys[kVectors];
    TM_UNROLL for (int c = 0; c < kVectors; c++) {
      keys[c] = kHalves ? Elements::load_halves(groups[kPerVector * c] + at,
                                                groups[kPerVector * c + kPerVector - 1] + at)
                        : Elements::load(groups[c] + at);
      TM_UNROLL for (int i = 0; i < kPerVector; i++)
        __builtin_prefetch(ahead[kPerVector * c + i] + at, 0, 2);
    }
    TM_UNROLL for (int r = 0; r < kRows; r++) {
      const auto input = Elements::broadcast(q[r / 3] + r % 3 * stride);
      TM_UNROLL for (int c = 0; c < kVectors; c++)
        Elements::multiply_add(sums[r][c], keys[c], input);
    }
    TM_UNROLL for (int i = 0; i < kBases; i++) q[i] += Elements::kPack;
  }
  TM_UNROLL for (int r = 0; r < kRows; r++)
    TM_UNROLL for (int c = 0; c < kVectors; c++)
      Elements::store(call.scores + r * kSpan + c * 16, sums[r][c]);
}

struct AccumulateCall {
  const void* weights;  // [rows, kSpan]
  const uint8_t* const* groups;
  const uint8_t* const* ahead;
  int64_t offset;     // of the values' columns, from the group's keys
  int64_t row_bytes;  // of kPack tokens' values
  int group;
  int keys;  // later ones may be anything
  float* out;  // [rows, out_stride]
  int64_t out_stride;
};

template <class Elements, int kRows, int kVectors>
void accumulate(const AccumulateCall& call) {
  const auto* weights = static_cast<const typename Elements::Row*>(call.weights);
  typename Elements::Sum sums[kRows][kVectors];
  TM_UNROLL for (int r = 0; r < kRows; r++)
    TM_UNROLL for (int c = 0; c < kVectors; c++)
      sums[r][c] = Elements::load_sum(call.out + r * call.out_stride + c * 16);
  const auto add = [&](const typename Elements::Vector* values) __attribute__((always_inline)) {
    TM_UNROLL for (int r = 0; r < kRows; r++) {
      const auto weight = Elements::broadcast(weights + r * kSpan);
      TM_UNROLL for (int c = 0; c < kVectors; c++)
        Elements::multiply_add(sums[r][c], values[c], weight);
    }
    weights += Elements::kPack;
  };
  int left = call.keys;
  for (int g = 0; left > 0; g++) {
    const uint8_t* values = call.groups[g] + call.offset;
    const uint8_t* ahead = call.ahead[g] + call.offset;
    const int here = std::min(left, call.group);
    left -= here;
    for (int i = 0; i < here / Elements::kPack; i++) {
      typename Elements::Vector row[kVectors];
      TM_UNROLL for (int c = 0; c < kVectors; c++) {
        row[c] = Elements::load(values + c * 64);
        __builtin_prefetch(ahead + c * 64, 0, 2);
      }
      add(row);
      values += call.row_bytes;
      ahead += call.row_bytes;
    }
    if (here % Elements::kPack != 0) {
      typename Elements::Vector row[kVectors];
      TM_UNROLL for (int c = 0; c < kVectors; c++)
        row[c] = Elements::keep_first(Elements::load(values + c * 64));
      add(row);
    }
  }
  TM_UNROLL for (int r = 0; r < kRows; r++)
    TM_UNROLL for (int c = 0; c < kVectors; c++)
      Elements::store(call.out + r * call.out_stride + c * 16, sums[r][c]);
}

// The instances by rows and vectors.
template <class Elements, bool kHalves>
struct Tables {
  void (*score[kMaxRows + 1][kMaxVectors + 1])(const ScoreCall&);
  void (*accumulate[kMaxRows + 1][kMaxVectors + 1])(const AccumulateCall&);

  template <int kRows, int kVectors>
  void fill() {
    score[kRows][kVectors] = tokenmill::score<Elements, kRows, kVectors, kHalves>;
    accumulate[kRows][kVectors] = tokenmill::accumulate<Elements, kRows, kVectors>;
    if constexpr (kVectors > 1) {
      fill<kRows, kVectors - 1>();
    } else if constexpr (kRows > 1) {
      fill<kRows - 1, kMaxVectors>();
    }
  }
  Tables() { fill<kMaxRows, kMaxVectors>(); }
};

template <class Elements, bool kHalves>
const Tables<Elements, kHalves>& tables() {
  static const Tables<Elements, kHalves> made;
  return made;
}

// The rows' running softmax; sums are kept per lane until the end.
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
    // A few rows go through all keys at once where there are few, else all rows through each span.
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
      const int64_t end = std::min(call_.keys.end, position_of(first + count - 1) + 1);
      const int keys = static_cast<int>(std::min<int64_t>(kSpan, end - begin));
      if (keys <= 0 || first_seen(first) >= begin + keys) continue;
      // The first rows fetch the next span for all.
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
  int64_t first_seen(int row) const {
    const int64_t window = call_.spec->sliding_window;
    return window > 0 ? position_of(row) + 1 - window : 0;
  }

  // Scores of one row to weights.
  void soften(int row, int r, int64_t begin, int vectors, int keys) {
    Lanes scores[kSpanVectors];
    for (int c = 0; c < vectors; c++) scores[c] = capped(load_lanes(scores_ + r * kSpan + c * 16));
    const int low = static_cast<int>(std::max<int64_t>(0, first_seen(row) - begin));
    const int high = static_cast<int>(std::min<int64_t>(keys, position_of(row) + 1 - begin));
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

  // Weights are relative to the largest logit so far, but only roughly: as long as none is 2^8
  // times larger, nothing has to be scaled anew. Sums of such weights are as precise as any.
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

// Puts the rows one after the other, in the form in which they are multiplied.
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
    store_as(to + i, load_vector<Floats>(out + i) * factor);
}

}  // namespace
}  // namespace tokenmill

// The inner loops of attention, for any instruction set and number type: scores of a few rows with
// up to 64 keys, and weighted sums of up to 64 values.
#pragma once

#include <algorithm>

#include "attention/kernels.h"
#include "vectors/wide.h"

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

// Addresses of the keys of up to 64 tokens, group by group. Unused entries repeat the last one.
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
  const uint8_t* const* ahead;  // groups to prefetch, at the same offsets
  int64_t steps;
  float* scores;  // [rows, kSpan]
};

template <class Elements, int kRows, int kVectors, bool kHalves>
void score(const ScoreCall& call) {
  constexpr int64_t kStep = kHalves ? 32 : 64;
  constexpr int kPerVector = kHalves ? 2 : 1;
  // Only every third row has a pointer, which saves registers: an x86 address can add an index
  // times 1 or 2.
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
  int64_t offset;     // from the group's keys to the values' columns
  int64_t row_bytes;  // size of the values of kPack tokens
  int group;
  int keys;  // slots after these may contain any value
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

// The instances of the inner loops by rows and vectors.
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

}  // namespace
}  // namespace tokenmill

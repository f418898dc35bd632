// The tiles of every format, for any instruction set: what differs is in `Isa`, which says how a
// pair of weights of 16 rows is fetched and multiplied with a pair of inputs.
//
// A tile keeps rows x 2 accumulators of 16 lanes in registers, reads each weight register once
// and broadcasts the inputs. With 12 rows that is 24 of AVX-512's 32 registers and 24 products for
// 14 loads, so the multiplier is the limit; with one row it is the memory.
#pragma once

#include "instruction_sets.h"
#include "lanes.h"

namespace tokenmill {
namespace {

constexpr int64_t kLine = 64;

// Reads ahead, evenly over a tile: all lines at once would wait for each other.
class Prefetcher {
 public:
  TM_INLINE explicit Prefetcher(const TileCall& call)
      : at_(call.prefetch), tiles_(call.prefetch_tiles) {}

  // After kLines lines of weights.
  template <int kLines>
  TM_INLINE void advance() {
    if (tiles_ == 1) {
#pragma GCC unroll 20
      for (int i = 0; i < kLines; i++) __builtin_prefetch(at_ + i * kLine, 0, 3);
      at_ += kLines * kLine;
    } else if (tiles_ > 1) {
      const int lines = tiles_ == 2   ? (kLines + 1) / 2
                        : tiles_ == 3 ? (kLines + 2) / 3
                                      : (kLines + 3) / 4;
      for (int i = 0; i < lines; i++) __builtin_prefetch(at_ + i * kLine, 0, 2);
      at_ += lines * kLine;
    }
  }

 private:
  const uint8_t* at_;
  int tiles_;
};

// Inputs of the tile's rows. Rows are addressed from every third one, since an x86 address takes
// an index times 1 or 2: fewer pointers to keep in registers.
template <class Element, int kRows>
class Inputs {
 public:
  TM_INLINE explicit Inputs(const TileCall& call) : stride_(call.x_stride) {
    const auto* x = static_cast<const Element*>(call.x);
    TM_UNROLL for (int i = 0; i < kBases; i++) base_[i] = x + 3 * i * stride_;
  }

  TM_INLINE const Element* at(int row, int64_t column) const {
    return base_[row / 3] + (row % 3) * stride_ + column;
  }

  TM_INLINE void advance(int64_t columns) {
    TM_UNROLL for (int i = 0; i < kBases; i++) base_[i] += columns;
  }

 private:
  static constexpr int kBases = (kRows + 2) / 3;
  const Element* base_[kBases];
  int64_t stride_;
};

template <class Isa, int kRows>
struct Sums {
  typename Isa::Sum value[kRows][2];

  TM_INLINE void clear() {
    TM_UNROLL for (int r = 0; r < kRows; r++)
      TM_UNROLL for (int c = 0; c < 2; c++) value[r][c] = Isa::zero();
  }
  TM_INLINE void load(const float* at) {
    TM_UNROLL for (int r = 0; r < kRows; r++)
      TM_UNROLL for (int c = 0; c < 2; c++)
        value[r][c] = Isa::load(at + r * kPanelRows + c * kLaneRows);
  }
  TM_INLINE void store(float* at) const {
    TM_UNROLL for (int r = 0; r < kRows; r++)
      TM_UNROLL for (int c = 0; c < 2; c++)
        Isa::store(at + r * kPanelRows + c * kLaneRows, value[r][c]);
  }
};

// Formats whose products go straight into the sums: `Dense` reads one step of one half panel.
template <class Isa, class Dense, int kRows>
void dense_tile(const TileCall& call) {
  constexpr int kStepsAtOnce = 4;
  Inputs<typename Dense::Input, kRows> x(call);
  Prefetcher prefetch(call);
  Sums<Isa, kRows> sums;
  if (call.add_to_sums) {
    sums.load(call.sums);
  } else {
    sums.clear();
  }
  const uint8_t* weights = call.weights;
  const auto step = [&](int64_t i) __attribute__((always_inline)) {
    const auto left = Dense::load(weights + i * Dense::kStepBytes);
    const auto right = Dense::load(weights + i * Dense::kStepBytes + Dense::kStepBytes / 2);
    TM_UNROLL for (int r = 0; r < kRows; r++) {
      const auto input = Dense::broadcast(x.at(r, i * Dense::kStepInputs));
      Dense::multiply_add(sums.value[r][0], left, input);
      Dense::multiply_add(sums.value[r][1], right, input);
    }
  };
  int64_t left_over = call.steps;
  for (; left_over >= kStepsAtOnce; left_over -= kStepsAtOnce) {
    prefetch.advance<kStepsAtOnce * Dense::kStepBytes / kLine>();
    TM_UNROLL for (int i = 0; i < kStepsAtOnce; i++) step(i);
    weights += kStepsAtOnce * Dense::kStepBytes;
    x.advance(kStepsAtOnce * Dense::kStepInputs);
  }
  for (; left_over > 0; left_over--) {
    step(0);
    weights += Dense::kStepBytes;
    x.advance(Dense::kStepInputs);
  }
  sums.store(call.sums);
}

// Block formats: the integers are multiplied as they are, exact in bfloat16, and the block's scale
// is applied once to the sum over its 32 inputs. `Block` unpacks the pairs of one half panel.
template <class Isa, class Block, int kRows>
void block_tile(const TileCall& call) {
  constexpr int kPairs = kBlock / 2;
  // Few rows leave registers for the totals, too; with more they are in memory (L1), where a
  // block's 16 products per row hide the one load and store.
  Inputs<typename Isa::Input, kRows> x(call);
  Prefetcher prefetch(call);
  if (!call.add_to_sums) {
    Sums<Isa, kRows> zeros;
    zeros.clear();
    zeros.store(call.sums);
  }
  const uint8_t* weights = call.weights;
  const float* block_sums = call.block_sums;
  for (int64_t block = 0; block < call.steps; block++) {
    prefetch.advance<Block::kStepBytes / kLine>();
    Sums<Isa, kRows> part;
    part.clear();
    typename Block::Unpacker left(weights), right(weights + Block::kHalfBytes);
    TM_UNROLL for (int pair = 0; pair < kPairs; pair++) {
      const auto left_pair = left.get(pair);
      const auto right_pair = right.get(pair);
      TM_UNROLL for (int r = 0; r < kRows; r++) {
        const auto input = Isa::broadcast(x.at(r, 2 * pair));
        Isa::multiply_add(part.value[r][0], left_pair, input);
        Isa::multiply_add(part.value[r][1], right_pair, input);
      }
    }
    const auto* scales = reinterpret_cast<const uint16_t*>(weights + 2 * Block::kHalfBytes);
    TM_UNROLL for (int c = 0; c < 2; c++) {
      const auto scale = Isa::load_fp16(scales + c * kLaneRows);
      [[maybe_unused]] const auto minimum =
          Isa::load_fp16(scales + (Block::kHasMinimum ? kPanelRows : 0) + c * kLaneRows);
      TM_UNROLL for (int r = 0; r < kRows; r++) {
        float* at = call.sums + r * kPanelRows + c * kLaneRows;
        auto total = Isa::fused(Isa::load(at), part.value[r][c], scale);
        if constexpr (Block::kHasMinimum)
          total = Isa::fused(total, minimum, Isa::splat(block_sums[r * call.block_sums_stride]));
        Isa::store(at, total);
      }
    }
    block_sums++;
    weights += Block::kStepBytes;
    x.advance(kBlock);
  }
}

// Instantiates a tile for 1 to kMost rows.
template <template <int> class TileOf, int kMost, int kRows = 1>
void fill_tiles(Tile* tiles) {
  if constexpr (kRows <= kMost) {
    tiles[kRows] = TileOf<kRows>::run;
    fill_tiles<TileOf, kMost, kRows + 1>(tiles);
  }
}

}  // namespace
}  // namespace tokenmill

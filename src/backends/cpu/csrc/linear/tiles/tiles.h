// The parts that all tiles share, and the tiles of float layouts. `Isa` loads pairs of weights of
// 16 rows and multiplies them by pairs of inputs.
//
// A tile keeps rows x 2 accumulators of 16 lanes in registers, reads each weight register once, and
// broadcasts the inputs. With 12 rows it uses 24 of AVX-512's 32 registers for accumulators, and
// has 24 products for 14 loads, so the multiplier limits the speed. With one row, memory does.
#pragma once

#include "linear/tiles/kernels.h"
#include "vectors/lanes.h"

namespace tokenmill {
namespace {

// Prefetches lines evenly over a tile: many prefetches at once would wait for each other.
class Prefetcher {
 public:
  TM_INLINE explicit Prefetcher(const TileCall& call)
      : at_(call.prefetch), tiles_(call.prefetch_tiles) {}

  // To be called after every kLines lines of weights.
  template <int kLines>
  TM_INLINE void advance() {
    if (tiles_ == 1) {
#pragma GCC unroll 20
      for (int i = 0; i < kLines; i++) __builtin_prefetch(at_ + i * kLineBytes, 0, 3);
      at_ += kLines * kLineBytes;
    } else if (tiles_ > 1) {
      const int lines = tiles_ == 2   ? (kLines + 1) / 2
                        : tiles_ == 3 ? (kLines + 2) / 3
                                      : (kLines + 3) / 4;
      for (int i = 0; i < lines; i++) __builtin_prefetch(at_ + i * kLineBytes, 0, 2);
      at_ += lines * kLineBytes;
    }
  }

 private:
  const uint8_t* at_;
  int tiles_;
};

// Inputs of the tile's rows. Only every third row has a pointer, which saves registers: an x86
// address can add an index times 1 or 2.
template <class Element, int kRows>
class Inputs {
 public:
  static constexpr int kCount = kRows;
  TM_INLINE explicit Inputs(const TileCall& call)
      : Inputs(static_cast<const Element*>(call.x), call.x_stride) {}
  TM_INLINE Inputs(const Element* x, int64_t stride) : stride_(stride) {
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

template <class Isa, int kRows, int kHalves>
struct Sums {
  typename Isa::Sum value[kRows][kHalves];

  TM_INLINE void clear() {
    TM_UNROLL for (int r = 0; r < kRows; r++)
      TM_UNROLL for (int h = 0; h < kHalves; h++) value[r][h] = Isa::zero();
  }
  TM_INLINE void load(const float* at) {
    TM_UNROLL for (int r = 0; r < kRows; r++)
      TM_UNROLL for (int h = 0; h < kHalves; h++)
        value[r][h] = Isa::load(at + r * kPanelRows + h * kLaneRows);
  }
  TM_INLINE void store(float* at) const {
    TM_UNROLL for (int r = 0; r < kRows; r++)
      TM_UNROLL for (int h = 0; h < kHalves; h++)
        Isa::store(at + r * kPanelRows + h * kLaneRows, value[r][h]);
  }
};

// Halves of a panel that are computed at once: both, if their sums fit into the registers.
template <class Isa, int kRows>
constexpr int kHalvesAtOnce = kRows <= Isa::kMaxRowsOfWholePanels ? 2 : 1;

// Tiles of layouts without scales, whose products are added directly to the sums. `Dense` reads one
// step of half a panel.
template <class Isa, class Dense, int kRows>
TM_INLINE void dense_halves(const TileCall& call, int first, Prefetcher prefetch) {
  constexpr int kStepsAtOnce = 4;
  constexpr int kHalves = kHalvesAtOnce<Isa, kRows>;
  Inputs<typename Dense::Input, kRows> x(call);
  Sums<Isa, kRows, kHalves> sums;
  if (call.add_to_sums) {
    sums.load(call.sums + first * kLaneRows);
  } else {
    sums.clear();
  }
  const uint8_t* weights = call.weights + first * Dense::kStepBytes / 2;
  const auto step = [&](int64_t i) __attribute__((always_inline)) {
    typename Dense::Weights half[kHalves];
    TM_UNROLL for (int h = 0; h < kHalves; h++)
      half[h] = Dense::load(weights + (2 * i + h) * Dense::kStepBytes / 2);
    TM_UNROLL for (int r = 0; r < kRows; r++) {
      const auto input = Dense::broadcast(x.at(r, i * Dense::kStepInputs));
      TM_UNROLL for (int h = 0; h < kHalves; h++)
        Dense::multiply_add(sums.value[r][h], half[h], input);
    }
  };
  int64_t left_over = call.steps;
  for (; left_over >= kStepsAtOnce; left_over -= kStepsAtOnce) {
    prefetch.template advance<kStepsAtOnce * Dense::kStepBytes / kLineBytes>();
    TM_UNROLL for (int i = 0; i < kStepsAtOnce; i++) step(i);
    weights += kStepsAtOnce * Dense::kStepBytes;
    x.advance(kStepsAtOnce * Dense::kStepInputs);
  }
  for (; left_over > 0; left_over--) {
    step(0);
    weights += Dense::kStepBytes;
    x.advance(Dense::kStepInputs);
  }
  sums.store(call.sums + first * kLaneRows);
}

template <class Isa, class Dense, int kRows>
void dense_tile(const TileCall& call) {
  dense_halves<Isa, Dense, kRows>(call, 0, Prefetcher(call));
  if (kHalvesAtOnce<Isa, kRows> == 1)
    dense_halves<Isa, Dense, kRows>(call, 1, Prefetcher(TileCall{}));
}

// Walks over the blocks of a tile: body(header of the step, block, number of the block).
template <Layout kLayout, class Inputs, class Body>
TM_INLINE void for_blocks(const TileCall& call, Inputs& x, int64_t block_of_x, Body body) {
  constexpr Sizes kSizes = sizes_of(kLayout);
  Prefetcher prefetch(call);
  if (!call.add_to_sums) std::memset(call.sums, 0, Inputs::kCount * kPanelRows * sizeof(float));
  const uint8_t* weights = call.weights;
  int64_t number = 0;
  for (int64_t step = 0; step < call.steps; step++) {
    const uint8_t* header = weights;
    weights += kSizes.header_bytes;
    prefetch.template advance<kSizes.header_bytes / kLineBytes>();
    for (int64_t i = 0; i < kSizes.blocks(); i++) {
      prefetch.template advance<(kSizes.block_bytes() + kLineBytes - 1) / kLineBytes>();
      body(header, weights, number++);
      weights += kSizes.block_bytes();
      x.advance(block_of_x);
    }
  }
}

// Instantiates the tiles of a layout for 1 to kRows rows.
template <class Isa, class Dense, int kRows>
void fill_dense_tiles(Tile* tiles) {
  tiles[kRows] = dense_tile<Isa, Dense, kRows>;
  if constexpr (kRows > 1) fill_dense_tiles<Isa, Dense, kRows - 1>(tiles);
}

}  // namespace
}  // namespace tokenmill

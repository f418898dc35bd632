// Tiles of quantized layouts whose inputs are floats.
//
// The numbers, which are exact in bfloat16, are multiplied without their scale; a scale is applied
// once to the sum over its group of inputs. The totals stay in memory (L1).
//
// Converting numbers takes longer than multiplying them by a few rows. With more rows, a panel is
// converted once, into a buffer in L2 (UnpackedBlock). Sums have the same order either way, so a row
// has the same result.
#pragma once

#include "linear/packed/numbers.h"
#include "linear/tiles/tiles.h"

namespace tokenmill {
namespace {

// Distance of the prefetch while a panel is unpacked: memory latency times bandwidth.
constexpr int64_t kUnpackAheadBytes = 4096;

// The pair of inputs 2 * pair and 2 * pair + 1 of half a panel.
template <class Isa, Layout kLayout>
TM_INLINE typename Isa::Pair pair_of(const uint8_t* block, int half, int pair) {
  Lanes even, odd;
  const int shift = pair % 2 * 16;
  TM_UNROLL for (int p = 0; p < kLaneParts; p++) {
    const Words four = Numbers<kLayout>::line(block, half * kLaneParts + p, pair / 2) >> shift;
    if constexpr (is_signed(kLayout)) {
      even.part[p] = __builtin_convertvector((Ints)(four << 24) >> 24, Floats);
      odd.part[p] = __builtin_convertvector((Ints)(four << 16) >> 24, Floats);
    } else {
      constexpr int kZero = zero_of(kLayout);
      even.part[p] = __builtin_convertvector((Ints)(four & 255u) - kZero, Floats);
      odd.part[p] = __builtin_convertvector((Ints)(four >> 8 & 255u) - kZero, Floats);
    }
  }
  return Isa::pair_of(even, odd);
}

// A block as it is packed. Two inputs are multiplied at a time.
template <class Isa, Layout kLayout>
struct PackedBlock {
  using N = Numbers<kLayout>;
  using Weights = typename Isa::Pair;
  static constexpr int kInputs = 2;
  static constexpr int kGroup = N::kGroup;
  static constexpr bool kHasMinimum = has_minimum(kLayout);
  const uint8_t* at;
  Scales<kLayout> scales;

  TM_INLINE PackedBlock(const uint8_t* header, const uint8_t* block)
      : at(block), scales(header, block) {}
  TM_INLINE Weights weights(int half, int number) const {
    return pair_of<Isa, kLayout>(at, half, number);
  }
  static TM_INLINE auto broadcast(const typename Isa::Input* x) { return Isa::broadcast(x); }
  template <class Sum, class Input>
  static TM_INLINE void multiply_add(Sum& sum, const Weights& weights, const Input& x) {
    Isa::multiply_add(sum, weights, x);
  }
  TM_INLINE Floats scale(int part, int group) const { return scales.scale(part, group); }
  TM_INLINE Floats minimum(int part, int group) const { return scales.minimum(part, group); }
};

// A block whose numbers and scales were converted before: the numbers as in a layout without scales,
// which `Dense` reads. Few tiles are compiled, because layouts with the same groups share them.
template <class Isa, int kGroupInputs, bool kMinimum>
struct UnpackedBlock : Isa::Unpacked {
  using Dense = typename Isa::Unpacked;
  static constexpr int kInputs = Dense::kStepInputs;
  static constexpr int kGroup = kGroupInputs;
  static constexpr bool kHasMinimum = kMinimum;
  static constexpr int kGroups = kBlock / kGroup;
  static constexpr int64_t kScaleBytes = kPanelRows * sizeof(float);
  static constexpr int64_t kScalesAt = kBlock / kInputs * Dense::kStepBytes;
  static constexpr int64_t kBytes = kScalesAt + kGroups * (kMinimum ? 2 : 1) * kScaleBytes;
  const uint8_t* at;

  TM_INLINE explicit UnpackedBlock(const uint8_t* block) : at(block) {}
  TM_INLINE typename Dense::Weights weights(int half, int number) const {
    return Dense::load(at + (2 * number + half) * Dense::kStepBytes / 2);
  }
  TM_INLINE Floats scale(int part, int group) const {
    return load_vector<Floats>(at + kScalesAt + group * kScaleBytes + part * kRegisterBytes);
  }
  TM_INLINE Floats minimum(int part, int group) const { return scale(part, kGroups + group); }
};
template <class Isa, Layout kLayout>
using UnpackedOf = UnpackedBlock<Isa, group_of(kLayout), has_minimum(kLayout)>;

template <class Isa, int kRows, class Block>
TM_INLINE void block_halves(const TileCall& call, const Inputs<typename Isa::Input, kRows>& x,
                            const Block& block, int64_t number, int first) {
  constexpr int kHalves = kHalvesAtOnce<Isa, kRows>, kSteps = Block::kGroup / Block::kInputs;
  constexpr int kGroups = kBlock / Block::kGroup;
  TM_UNROLL for (int group = 0; group < kGroups; group++) {
    Sums<Isa, kRows, kHalves> part;
    part.clear();
    // Hardly unrolled: compiling takes time.
#pragma GCC unroll 4
    for (int step = group * kSteps; step < (group + 1) * kSteps; step++) {
      typename Block::Weights half[kHalves];
      TM_UNROLL for (int h = 0; h < kHalves; h++) half[h] = block.weights(first + h, step);
      TM_UNROLL for (int r = 0; r < kRows; r++) {
        const auto input = Block::broadcast(x.at(r, Block::kInputs * step));
        TM_UNROLL for (int h = 0; h < kHalves; h++)
          Block::multiply_add(part.value[r][h], half[h], input);
      }
    }
    TM_UNROLL for (int h = 0; h < kHalves; h++) {
      TM_UNROLL for (int p = 0; p < kLaneParts; p++) {
        const int column = (first + h) * kLaneParts + p;
        const Floats scale = block.scale(column, group);
        TM_UNROLL for (int r = 0; r < kRows; r++) {
          float* at = call.sums + r * kPanelRows + column * TM_WIDTH;
          Floats total = load_vector<Floats>(at) + Isa::part_of(part.value[r][h], p) * scale;
          if constexpr (Block::kHasMinimum)
            total += block.minimum(column, group) *
                     call.group_sums[r * call.group_sums_stride + number * kGroups + group];
          store_vector(at, total);
        }
      }
    }
  }
}

template <class Isa, int kRows, class Block>
TM_INLINE void both_halves(const TileCall& call, const Inputs<typename Isa::Input, kRows>& x,
                           const Block& block, int64_t number) {
  block_halves<Isa, kRows>(call, x, block, number, 0);
  if (kHalvesAtOnce<Isa, kRows> == 1) block_halves<Isa, kRows>(call, x, block, number, 1);
}

template <class Isa, Layout kLayout, int kRows>
void block_tile(const TileCall& call) {
  Inputs<typename Isa::Input, kRows> x(call);
  for_blocks<kLayout>(call, x, kBlock, [&](auto header, auto block, int64_t number)
      __attribute__((always_inline)) {
    both_halves<Isa, kRows>(call, x, PackedBlock<Isa, kLayout>(header, block), number);
  });
}

template <class Isa, class Block, int kRows>
void unpacked_tile(const TileCall& call) {
  Inputs<typename Isa::Input, kRows> x(call);
  if (!call.add_to_sums) std::memset(call.sums, 0, kRows * kPanelRows * sizeof(float));
  for (int64_t i = 0; i < call.steps; i++, x.advance(kBlock))
    both_halves<Isa, kRows>(call, x, Block(call.weights + i * Block::kBytes), i);
}

struct NoInputs {
  static constexpr int kCount = 0;
  void advance(int64_t) {}
};

// Unpacks some steps of a panel.
template <class Isa, Layout kLayout>
void unpack_blocks(const uint8_t* weights, int64_t steps, uint8_t* unpacked) {
  using To = UnpackedOf<Isa, kLayout>;
  NoInputs none;
  TileCall call = {};
  call.weights = weights;
  call.steps = steps;
  call.prefetch = weights + kUnpackAheadBytes;
  call.prefetch_tiles = 1;
  for_blocks<kLayout>(call, none, 0, [&](auto header, auto block, int64_t)
      __attribute__((always_inline)) {
    const PackedBlock<Isa, kLayout> from(header, block);
    TM_UNROLL for (int pair = 0; pair < kBlock / 2; pair++) {
      uint8_t* to = unpacked + 2 * pair / To::kInputs * To::kStepBytes;
      TM_UNROLL for (int half = 0; half < 2; half++)
        Isa::store_pair(to + half * kLineBytes, from.weights(half, pair));
    }
    TM_UNROLL for (int part = 0; part < kPanelParts; part++) {
      uint8_t* to = unpacked + To::kScalesAt + part * kRegisterBytes;
      TM_UNROLL for (int group = 0; group < To::kGroups; group++) {
        store_vector(to + group * To::kScaleBytes, from.scale(part, group));
        if constexpr (To::kHasMinimum)
          store_vector(to + (To::kGroups + group) * To::kScaleBytes, from.minimum(part, group));
      }
    }
    unpacked += To::kBytes;
  });
}

template <class Isa, Layout kLayout, int kRows>
void fill_block_tiles(Tile* tiles) {
  tiles[kRows] = block_tile<Isa, kLayout, kRows>;
  if constexpr (kRows > 1) fill_block_tiles<Isa, kLayout, kRows - 1>(tiles);
}

template <class Isa, class Block, int kRows>
void fill_unpacked_tiles(Tile* tiles) {
  tiles[kRows] = unpacked_tile<Isa, Block, kRows>;
  if constexpr (kRows > 1) fill_unpacked_tiles<Isa, Block, kRows - 1>(tiles);
}

}  // namespace
}  // namespace tokenmill

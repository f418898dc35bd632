// Tiles of quantized layouts whose inputs are floats.
//
// The numbers, which are exact in bfloat16, are
// multiplied without their scale; a scale is applied once to the sum over its group of inputs. The
// totals stay in memory (L1).
#pragma once

#include "linear/numbers.h"
#include "linear/tiles.h"

namespace tokenmill {
namespace {

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

template <class Isa, Layout kLayout, int kRows>
TM_INLINE void block_halves(const TileCall& call, const Inputs<typename Isa::Input, kRows>& x,
                            const uint8_t* header, const uint8_t* block, int64_t number,
                            int first) {
  using N = Numbers<kLayout>;
  constexpr int kHalves = kHalvesAtOnce<Isa, kRows>;
  const Scales<kLayout> scales(header, block);
  TM_UNROLL for (int group = 0; group < N::kGroups; group++) {
    Sums<Isa, kRows, kHalves> part;
    part.clear();
    // Not unrolled: these tiles are rare, and compiling them takes time.
#pragma GCC unroll 1
    for (int pair = group * N::kGroup / 2; pair < (group + 1) * N::kGroup / 2; pair++) {
      typename Isa::Pair half[kHalves];
      TM_UNROLL for (int h = 0; h < kHalves; h++)
        half[h] = pair_of<Isa, kLayout>(block, first + h, pair);
      TM_UNROLL for (int r = 0; r < kRows; r++) {
        const auto input = Isa::broadcast(x.at(r, 2 * pair));
        TM_UNROLL for (int h = 0; h < kHalves; h++)
          Isa::multiply_add(part.value[r][h], half[h], input);
      }
    }
    TM_UNROLL for (int h = 0; h < kHalves; h++) {
      TM_UNROLL for (int p = 0; p < kLaneParts; p++) {
        const int column = (first + h) * kLaneParts + p;
        const Floats scale = scales.scale(column, group);
        TM_UNROLL for (int r = 0; r < kRows; r++) {
          float* at = call.sums + r * kPanelRows + column * TM_WIDTH;
          Floats total = load_vector<Floats>(at) + Isa::part_of(part.value[r][h], p) * scale;
          if constexpr (has_minimum(kLayout))
            total += scales.minimum(column) * call.block_sums[r * call.block_sums_stride + number];
          store_vector(at, total);
        }
      }
    }
  }
}

template <class Isa, Layout kLayout, int kRows>
void block_tile(const TileCall& call) {
  Inputs<typename Isa::Input, kRows> x(call);
  for_blocks<kLayout>(call, x, kBlock, [&](auto header, auto block, int64_t number)
      __attribute__((always_inline)) {
    block_halves<Isa, kLayout, kRows>(call, x, header, block, number, 0);
    if (kHalvesAtOnce<Isa, kRows> == 1)
      block_halves<Isa, kLayout, kRows>(call, x, header, block, number, 1);
  });
}

template <class Isa, Layout kLayout, int kRows>
void fill_block_tiles(Tile* tiles) {
  tiles[kRows] = block_tile<Isa, kLayout, kRows>;
  if constexpr (kRows > 1) fill_block_tiles<Isa, kLayout, kRows - 1>(tiles);
}

}  // namespace
}  // namespace tokenmill

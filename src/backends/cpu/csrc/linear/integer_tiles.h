// Tiles of quantized layouts whose inputs are int8 numbers (InputBlock).
//
// The sums of a block are integers. They become floats once per group of inputs that share a scale,
// are multiplied by the scales of inputs and weights, and are added to totals in memory (L1). A row's
// operations are the same in tiles of all sizes, so a row's result does not depend on other rows.
#pragma once

#include "linear/dots.h"
#include "linear/numbers.h"
#include "linear/tiles.h"

namespace tokenmill {
namespace {

// Registers of a panel that are computed at once, as many as the sums of all rows leave room for.
#if defined(__AVX512F__)
template <Layout kLayout>
constexpr int kIntegerRows = 12;
template <int kRows>
constexpr int kPartsAtOnce = 2;
#elif defined(__AVX2__)
template <Layout kLayout>
constexpr int kIntegerRows = sizes_of(kLayout).bits == 4 ? 8 : 6;
template <int kRows>
constexpr int kPartsAtOnce = kRows <= 2 ? 2 : 1;
#else
template <Layout kLayout>
constexpr int kIntegerRows = 4;
template <int kRows>
constexpr int kPartsAtOnce = 1;
#endif

template <int kRows>
using InputBlocks = Inputs<uint8_t, kRows>;

TM_INLINE const InputBlock& input_block(const uint8_t* at) {
  return *reinterpret_cast<const InputBlock*>(at);
}

template <Layout kLayout, int kRows>
TM_INLINE void integer_parts(const TileCall& call, const InputBlocks<kRows>& x,
                             const uint8_t* header, const uint8_t* block, int first) {
  using N = Numbers<kLayout>;
  constexpr int kParts = kPartsAtOnce<kRows>;
  const Scales<kLayout> scales(header, block);
  TM_UNROLL for (int group = 0; group < N::kGroups; group++) {
    Dot<N::kSizes.bits> dots[kRows][kParts];
    TM_UNROLL for (int r = 0; r < kRows; r++)
      TM_UNROLL for (int p = 0; p < kParts; p++)
        dots[r][p].start(kHasOffsets<kLayout> ? input_block(x.at(r, 0)).offsets[group] : 0);
    TM_UNROLL for (int i = 0; i < N::kGroupLines; i += 2) {
      const int line = group * N::kGroupLines + i;
      Words w0[kParts], w1[kParts];
      TM_UNROLL for (int p = 0; p < kParts; p++) {
        w0[p] = N::line(block, first + p, line);
        w1[p] = N::line(block, first + p, line + 1);
      }
      TM_UNROLL for (int r = 0; r < kRows; r++) {
        const int8_t* values = input_block(x.at(r, 0)).values + line * 4;
        const FourInputs x0 = four_inputs(values), x1 = four_inputs(values + 4);
        TM_UNROLL for (int p = 0; p < kParts; p++) dots[r][p].add(w0[p], x0, w1[p], x1);
      }
    }
    TM_UNROLL for (int p = 0; p < kParts; p++) {
      const Floats scale = scales.scale(first + p, group);
      [[maybe_unused]] Floats minimum;
      if constexpr (has_minimum(kLayout)) minimum = scales.minimum(first + p);
      TM_UNROLL for (int r = 0; r < kRows; r++) {
        const InputBlock& inputs = input_block(x.at(r, 0));
        float* at = call.sums + r * kPanelRows + (first + p) * TM_WIDTH;
        const Floats sum = __builtin_convertvector(dots[r][p].total(), Floats) * inputs.scale;
        Floats total = load_vector<Floats>(at) + sum * scale;
        if constexpr (has_minimum(kLayout)) total += minimum * inputs.sum;
        store_vector(at, total);
      }
    }
  }
}

template <Layout kLayout, int kRows>
void integer_tile(const TileCall& call) {
  InputBlocks<kRows> x(call);
  for_blocks<kLayout>(call, x, sizeof(InputBlock),
                      [&](auto header, auto block, int64_t) __attribute__((always_inline)) {
    TM_UNROLL for (int first = 0; first < kPanelParts; first += kPartsAtOnce<kRows>)
      integer_parts<kLayout, kRows>(call, x, header, block, first);
  });
}

template <Layout kLayout, int kRows>
void fill_integer_tiles(Tile* tiles) {
  tiles[kRows] = integer_tile<kLayout, kRows>;
  if constexpr (kRows > 1) fill_integer_tiles<kLayout, kRows - 1>(tiles);
}

template <Layout kLayout>
TileSet integer_tiles() {
  TileSet set = {};
  set.input = Input::kBlocks;
  set.max_rows = kIntegerRows<kLayout>;
  set.zero = kZeroOf<kLayout>;
  fill_integer_tiles<kLayout, kIntegerRows<kLayout>>(set.tile);
  return set;
}

}  // namespace
}  // namespace tokenmill

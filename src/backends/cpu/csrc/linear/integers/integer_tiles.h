// Tiles of quantized layouts whose inputs are int8 numbers (InputBlock).
//
// The sums of a block are integers. They become floats once per group of inputs that share a scale,
// are multiplied by the scales of inputs and weights, and are added to totals in memory (L1). A row's
// operations are the same in tiles of all sizes, so a row's result does not depend on other rows.
#pragma once

#include <algorithm>

#include "linear/integers/dots.h"
#include "linear/packed/numbers.h"
#include "linear/tiles/tiles.h"

namespace tokenmill {
namespace {

// The shape of tiles: the most rows, the registers of a panel and the groups of inputs that are
// computed at once. The sums of all of them stay in registers.
struct TileShape {
  int max_rows, parts, groups;
};
// With so few rows, weights of 8 bits arrive later than they can be multiplied. Without prefetches and
// read from front to back, they arrive 1.2 to 1.5 times as fast on Zen 4.
template <Layout kLayout>
constexpr int kRowsFromMemory = sizes_of(kLayout).bits == 8 ? 4 : 0;

template <Layout kLayout, int kRows>
constexpr TileShape shape_of() {
#if defined(__AVX512F__)
  if (kRows <= kRowsFromMemory<kLayout>) return {12, 1, 1};
  return group_of(kLayout) < kBlock ? TileShape{12, 1, 2} : TileShape{12, 2, 1};
#elif defined(__AVXVNNI__)
  return {5, 2, 1};
#elif defined(__AVX2__)
  return group_of(kLayout) < kBlock         ? TileShape{6, 1, 2}
         : sizes_of(kLayout).bits == 5      ? TileShape{4, 2, 1}
                                            : TileShape{5, 2, 1};
#elif defined(__ARM_FEATURE_MATMUL_INT8)
  return {8, kRows <= 4 ? 4 : 2, 1};
#elif defined(__aarch64__)
  return {4, 4, 1};
#else
  return {4, 1, 1};
#endif
}

template <Layout kLayout>
constexpr bool kHasMinimumOfHalves = has_minimum(kLayout) && group_of(kLayout) < kBlock;

template <int kRows>
using InputBlocks = Inputs<uint8_t, kRows>;

TM_INLINE const InputBlock& input_block(const uint8_t* at) {
  return *reinterpret_cast<const InputBlock*>(at);
}

// Multiplies kShape.parts registers of a block, from register `part`, and kShape.groups groups. The
// sums of a row are kSumsStride floats after those of the row before.
template <Layout kLayout, int kRows, int kSumsStride>
TM_INLINE void integer_part(const TileCall& call, const InputBlocks<kRows>& x,
                            const Scales<kLayout>& scales, const uint8_t* block, int part,
                            int group) {
  using N = Numbers<kLayout>;
  constexpr TileShape kShape = shape_of<kLayout, kRows>();
  constexpr int kParts = kShape.parts, kGroups = kShape.groups;
  constexpr int kTogether = kRowsTogether<kRows>, kDots = (kRows + kTogether - 1) / kTogether;
  using Dots = RowDots<N::kSizes.number_bits, kTogether>;
  Dots dots[kGroups][kDots][kParts];
  // The rows of a Dots. An uneven last row is multiplied twice.
  const auto first_of = [&](int d) __attribute__((always_inline)) -> const InputBlock& {
    return input_block(x.at(d * kTogether, 0));
  };
  const auto last_of = [&](int d) __attribute__((always_inline)) -> const InputBlock& {
    return input_block(x.at(std::min((d + 1) * kTogether, kRows) - 1, 0));
  };
  TM_UNROLL for (int g = 0; g < kGroups; g++) {
    TM_UNROLL for (int d = 0; d < kDots; d++) {
      int32_t first = 0, last = 0;
      if (kHasOffsets<kLayout>) {
        first = first_of(d).offsets[group + g];
        last = last_of(d).offsets[group + g];
      }
      TM_UNROLL for (int p = 0; p < kParts; p++) dots[g][d][p].start(first, last);
    }
    TM_UNROLL for (int i = 0; i < N::kGroupLines; i += 2) {
      const int line = (group + g) * N::kGroupLines + i;
      Words w0[kParts], w1[kParts];
      TM_UNROLL for (int p = 0; p < kParts; p++) {
        w0[p] = N::line(block, part + p, line);
        w1[p] = N::line(block, part + p, line + 1);
      }
      TM_UNROLL for (int d = 0; d < kDots; d++) {
        const auto inputs =
            Dots::inputs(first_of(d).values + line * 4, last_of(d).values + line * 4);
        TM_UNROLL for (int p = 0; p < kParts; p++) dots[g][d][p].add(w0[p], w1[p], inputs);
      }
    }
  }
  TM_UNROLL for (int p = 0; p < kParts; p++) {
    Floats scale[kGroups], minimum[kGroups];
    TM_UNROLL for (int g = 0; g < kGroups; g++) {
      scale[g] = scales.scale(part + p, group + g);
      if constexpr (has_minimum(kLayout)) minimum[g] = scales.minimum(part + p, group + g);
    }
    TM_UNROLL for (int r = 0; r < kRows; r++) {
      const InputBlock& inputs = input_block(x.at(r, 0));
      float* at = call.sums + r * kSumsStride + (part + p) * TM_WIDTH;
      const auto sum_of = [&](int g) __attribute__((always_inline)) {
        const Ints total = dots[g][r / kTogether][p].total(r % kTogether);
        return __builtin_convertvector(total, Floats) * scale[g];
      };
      Floats sum = sum_of(0);
      TM_UNROLL for (int g = 1; g < kGroups; g++) sum += sum_of(g);
      if constexpr (kHasMinimumOfHalves<kLayout>) {
        TM_UNROLL for (int g = 0; g < kGroups; g++)
          sum += minimum[g] * static_cast<float>(inputs.offsets[group + g]);
      }
      Floats total = load_vector<Floats>(at) + sum * inputs.scale;
      if constexpr (has_minimum(kLayout) && !kHasMinimumOfHalves<kLayout>)
        total += minimum[0] * inputs.sum;
      store_vector(at, total);
    }
  }
}

template <int kRows>
TM_INLINE bool has_rest(const InputBlocks<kRows>& x) {
  int32_t any = 0;
  TM_UNROLL for (int r = 0; r < kRows; r++) any |= input_block(x.at(r, 0)).has_rest;
  return any != 0;
}

template <Layout kLayout, int kRows, int kSumsStride = kPanelRows>
TM_INLINE void integer_block(const TileCall& call, const InputBlocks<kRows>& x,
                             const Scales<kLayout>& scales, const uint8_t* block) {
  constexpr TileShape kShape = shape_of<kLayout, kRows>();
  TM_UNROLL for (int group = 0; group < Numbers<kLayout>::kGroups; group += kShape.groups)
    // Hardly unrolled: the code is long enough.
#pragma GCC unroll 2
    for (int part = 0; part < kPanelParts; part += kShape.parts)
      integer_part<kLayout, kRows, kSumsStride>(call, x, scales, block, part, group);
}

// Whether a row's block and its rest can be multiplied together, as if they were two rows. If groups
// come one after the other, sums would have another order than in tiles of more rows.
template <Layout kLayout, int kRows>
constexpr bool kIsWithRest =
    kRows == 1 && Numbers<kLayout>::kGroups == shape_of<kLayout, 2>().groups;

template <Layout kLayout, int kRows>
void integer_tile(const TileCall& call) {
  InputBlocks<kRows> x(call);
  for_blocks<kLayout>(call, x, sizeof(InputBlock),
                      [&](auto header, auto block, int64_t) __attribute__((always_inline)) {
    const Scales<kLayout> scales(header, block);
    if (!has_rest<kRows>(x)) return integer_block<kLayout, kRows>(call, x, scales, block);
    if constexpr (kIsWithRest<kLayout, kRows>) {
      const InputBlocks<2> both(x.at(0, 0), call.rests_at);
      return integer_block<kLayout, 2, 0>(call, both, scales, block);
    }
    // Rests of other rows are zeros, which change nothing.
    for (int i = 0; i < 2; i++) {
      integer_block<kLayout, kRows>(call, x, scales, block);
      x.advance(i == 0 ? call.rests_at : -call.rests_at);
    }
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
  constexpr int kRows = shape_of<kLayout, 1>().max_rows;
  set.max_rows = kRows;
  // Minima are multiplied by sums of inputs: with -1, those are the offsets.
  set.zero = kHasMinimumOfHalves<kLayout> ? -1 : kZeroOf<kLayout>;
  fill_integer_tiles<kLayout, kRows>(set.tile);
  set.prefetch_above = kRowsFromMemory<kLayout>;
  return set;
}

template <Layout... kLayouts>
void add_integer_tiles(TileSet* sets) {
  ((sets[static_cast<int>(kLayouts)] = integer_tiles<kLayouts>()), ...);
}

}  // namespace
}  // namespace tokenmill

// The table of an instruction set that multiplies in float.
#pragma once

#include "finish.h"
#include "float_tiles.h"

namespace tokenmill {
namespace {

// Twice as many rows, then of half panels: the cost of widening a weight is shared by more of them.
constexpr int kFloatTileRows = TM_WIDTH == 16 ? 12 : 2 * FloatIsa::kMostRowsOfWholePanels;

// What the table of every instruction set has: float weights, and the ends of products.
inline Kernels make_common_kernels(const char* name) {
  Kernels table = {};
  table.name = name;
  table.max_tile_rows = kFloatTileRows;
  for (Element& input : table.input) input = Element::kF32;
  fill_tiles<FloatF32Tile, kFloatTileRows>(table.tile[static_cast<int>(Format::kF32)]);
  table.finish = finish;
  table.widen = widen;
  table.sum_blocks = sum_float_blocks;
  return table;
}

inline Kernels make_float_kernels(const char* name) {
  Kernels table = make_common_kernels(name);
  fill_tiles<FloatBF16Tile, kFloatTileRows>(table.tile[static_cast<int>(Format::kBF16)]);
  fill_tiles<FloatQ40Tile, kFloatTileRows>(table.tile[static_cast<int>(Format::kQ4_0)]);
  fill_tiles<FloatQ41Tile, kFloatTileRows>(table.tile[static_cast<int>(Format::kQ4_1)]);
  fill_tiles<FloatQ80Tile, kFloatTileRows>(table.tile[static_cast<int>(Format::kQ8_0)]);
  return table;
}

}  // namespace
}  // namespace tokenmill

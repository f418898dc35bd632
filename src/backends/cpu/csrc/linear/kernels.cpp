#include "linear/kernels.h"

#include "linear/finish.h"
#include "linear/float_tiles.h"
#if defined(__AVX512BF16__)
#include "linear/bf16_tiles.h"
#endif

namespace tokenmill {
namespace {

// Without AVX-512, tiles have twice as many rows as fit with whole panels, and compute half panels:
// more rows then share the cost of widening a weight.
constexpr int kFloatTileRows = TM_WIDTH == 16 ? 12 : 2 * FloatIsa::kMaxRowsOfWholePanels;

template <template <int> class TileOf>
void fill(LinearKernels& table, Format format) {
  fill_tiles<TileOf, kFloatTileRows>(table.tile[static_cast<int>(format)]);
}

LinearKernels make_kernels() {
  LinearKernels table = {};
  table.max_tile_rows = kFloatTileRows;
  for (Element& input : table.input) input = Element::kF32;
  table.finish = finish;
  table.widen = widen;
  fill<FloatF32Tile>(table, Format::kF32);
#if defined(__AVX512BF16__)
  for (int format = 1; format < kNumFormats; format++) table.input[format] = Element::kBF16;
  table.sum_blocks = sum_bf16_blocks;
  fill<BF16Tile>(table, Format::kBF16);
  fill<Q40Tile>(table, Format::kQ4_0);
  fill<Q41Tile>(table, Format::kQ4_1);
  fill<Q80Tile>(table, Format::kQ8_0);
#else
  table.sum_blocks = sum_float_blocks;
  fill<FloatBF16Tile>(table, Format::kBF16);
  fill<FloatQ40Tile>(table, Format::kQ4_0);
  fill<FloatQ41Tile>(table, Format::kQ4_1);
  fill<FloatQ80Tile>(table, Format::kQ8_0);
#endif
  return table;
}

}  // namespace

const LinearKernels& linear_kernels() {
  static const LinearKernels table = make_kernels();
  return table;
}

}  // namespace tokenmill

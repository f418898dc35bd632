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
constexpr int kTileRows = TM_WIDTH == 16 ? 12 : 2 * FloatIsa::kMaxRowsOfWholePanels;

LinearKernels make_kernels() {
  LinearKernels table = {};
  table.max_tile_rows = kTileRows;
  for (Element& input : table.input) input = Element::kF32;
  table.finish = finish;
  table.widen = widen;
  const auto tiles = [&](Format format) { return table.tile[static_cast<int>(format)]; };
  fill_dense_tiles<FloatIsa, FloatF32, kTileRows>(tiles(Format::kF32));
#if defined(__AVX512BF16__)
  for (int format = 1; format < kNumFormats; format++) table.input[format] = Element::kBF16;
  table.sum_blocks = sum_bf16_blocks;
  fill_dense_tiles<BF16Isa, DenseBF16, kTileRows>(tiles(Format::kBF16));
  fill_block_tiles<BF16Isa, Nibbles<Format::kQ4_0>, kTileRows>(tiles(Format::kQ4_0));
  fill_block_tiles<BF16Isa, Nibbles<Format::kQ4_1>, kTileRows>(tiles(Format::kQ4_1));
  fill_block_tiles<BF16Isa, Bytes, kTileRows>(tiles(Format::kQ8_0));
#else
  table.sum_blocks = sum_float_blocks;
  fill_dense_tiles<FloatIsa, FloatBF16, kTileRows>(tiles(Format::kBF16));
  fill_block_tiles<FloatIsa, FloatNibbles<Format::kQ4_0, 8>, kTileRows>(tiles(Format::kQ4_0));
  fill_block_tiles<FloatIsa, FloatNibbles<Format::kQ4_1, 0>, kTileRows>(tiles(Format::kQ4_1));
  fill_block_tiles<FloatIsa, FloatBytes, kTileRows>(tiles(Format::kQ8_0));
#endif
  return table;
}

}  // namespace

const LinearKernels& linear_kernels() {
  static const LinearKernels table = make_kernels();
  return table;
}

}  // namespace tokenmill

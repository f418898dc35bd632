#include "linear/tiles/kernels.h"

#include "linear/tiles/block_tiles.h"
#include "linear/tiles/finish.h"
#include "linear/tiles/float_tiles.h"
#if defined(__AVX512BF16__)
#include "linear/tiles/bf16_tiles.h"
#endif

namespace tokenmill {
namespace {

// Without AVX-512, tiles have twice as many rows as fit with whole panels, and compute half panels:
// more rows then share the cost of widening a weight.
constexpr int kBF16Rows = TM_WIDTH == 16 ? 12 : 2 * FloatIsa::kMaxRowsOfWholePanels;
// Weights that need no widening leave registers for more rows.
constexpr int kFloatRows = TM_WIDTH == 8 ? 6 : kBF16Rows;
// Tiles of quantized layouts have fewer rows: with more rows, panels are unpacked first.
constexpr int kBlockRows = TM_WIDTH == 16 ? 6 : kBF16Rows;

#if defined(__AVX512BF16__)
using BlockIsa = BF16Isa;
using Dense = DenseBF16;
#else
using BlockIsa = FloatIsa;
using Dense = FloatBF16;
#endif
constexpr Input kInput = sizeof(BlockIsa::Input) == 2 ? Input::kBF16 : Input::kF32;

template <class Block>
const TileSet& unpacked_tiles() {
  static const TileSet set = [] {
    TileSet made = {kInput, kFloatRows};
    fill_unpacked_tiles<BlockIsa, Block, kFloatRows>(made.tile);
    return made;
  }();
  return set;
}

template <Layout kLayout>
void add_quantized(LinearKernels& table) {
  TileSet& set = table.floats[static_cast<int>(kLayout)];
  set = {kInput, kBlockRows};
  fill_block_tiles<BlockIsa, kLayout, kBlockRows>(set.tile);
  using Block = UnpackedOf<BlockIsa, kLayout>;
  set.unpack_above = kBlockRows;
  set.unpacking = {unpack_blocks<BlockIsa, kLayout>, &unpacked_tiles<Block>(),
                   sizes_of(kLayout).blocks(), Block::kBytes};
}

const TileSet& float_tiles() {
  static const TileSet set = [] {
    TileSet made = {Input::kF32, kFloatRows};
    fill_dense_tiles<FloatIsa, FloatF32, kFloatRows>(made.tile);
    return made;
  }();
  return set;
}

LinearKernels make_kernels() {
  LinearKernels table = {};
  table.finish = finish;
  table.floats[static_cast<int>(Layout::kF32)] = float_tiles();
  TileSet& bf16 = table.floats[static_cast<int>(Layout::kBF16)];
  bf16 = {kInput, kBF16Rows};
  fill_dense_tiles<BlockIsa, Dense, kBF16Rows>(bf16.tile);
  TileSet& f16 = table.floats[static_cast<int>(Layout::kF16)];
  f16 = {Input::kF32, kFloatRows};
  fill_dense_tiles<FloatIsa, FloatF16, kFloatRows>(f16.tile);
#if !defined(__AVX512F__)
  bf16.unpack_above = f16.unpack_above = 2 * kFloatRows;
  bf16.unpacking = {FloatBF16::unpack, &float_tiles(), FloatBF16::kStepInputs,
                    FloatF32::kStepBytes};
  f16.unpacking = {FloatF16::unpack, &float_tiles(), FloatF16::kStepInputs, FloatF32::kStepBytes};
#endif
  add_quantized<Layout::kBlocks4>(table);
  add_quantized<Layout::kBlocks5>(table);
  add_quantized<Layout::kBytes>(table);
  add_quantized<Layout::kSuper4>(table);
  add_quantized<Layout::kSuper5>(table);
  add_quantized<Layout::kSix>(table);
  add_quantized<Layout::kE2M1>(table);
  add_quantized<Layout::kIQ4>(table);
  add_quantized<Layout::kSuperIQ4>(table);
  add_quantized<Layout::kThree>(table);
  add_quantized<Layout::kTwo>(table);
  add_tiles_of_blocks(table.integers);
  add_tiles_of_super_blocks(table.integers);
  add_tiles_of_small_groups(table.integers);
  add_tiles_of_tables(table.integers);
  return table;
}

}  // namespace

const LinearKernels& linear_kernels() {
  static const LinearKernels table = make_kernels();
  return table;
}

}  // namespace tokenmill

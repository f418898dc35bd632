#include "linear/kernels.h"

#include "linear/block_tiles.h"
#include "linear/finish.h"
#include "linear/float_tiles.h"
#if defined(__AVX512BF16__)
#include "linear/bf16_tiles.h"
#endif

namespace tokenmill {
namespace {

// Without AVX-512, tiles have twice as many rows as fit with whole panels, and compute half panels:
// more rows then share the cost of widening a weight.
constexpr int kFloatRows = TM_WIDTH == 16 ? 12 : 2 * FloatIsa::kMaxRowsOfWholePanels;
// Of quantized layouts, fewer: most products with them have int8 inputs.
constexpr int kBlockRows = TM_WIDTH == 16 ? 6 : kFloatRows;

#if defined(__AVX512BF16__)
using BlockIsa = BF16Isa;
using Dense = DenseBF16;
#else
using BlockIsa = FloatIsa;
using Dense = FloatBF16;
#endif
constexpr Input kInput = sizeof(BlockIsa::Input) == 2 ? Input::kBF16 : Input::kF32;

template <Layout kLayout>
void add_quantized(LinearKernels& table) {
  constexpr int kIndex = static_cast<int>(kLayout);
  table.floats[kIndex] = {kInput, kBlockRows, 0, {}};
  fill_block_tiles<BlockIsa, kLayout, kBlockRows>(table.floats[kIndex].tile);
}

LinearKernels make_kernels() {
  LinearKernels table = {};
  table.finish = finish;
  TileSet& f32 = table.floats[static_cast<int>(Layout::kF32)];
  f32 = {Input::kF32, kFloatRows, 0, {}};
  fill_dense_tiles<FloatIsa, FloatF32, kFloatRows>(f32.tile);
  TileSet& bf16 = table.floats[static_cast<int>(Layout::kBF16)];
  bf16 = {kInput, kFloatRows, 0, {}};
  fill_dense_tiles<BlockIsa, Dense, kFloatRows>(bf16.tile);
  add_quantized<Layout::kBlocks4>(table);
  add_quantized<Layout::kBlocks5>(table);
  add_quantized<Layout::kBytes>(table);
  add_quantized<Layout::kSuper4>(table);
  add_quantized<Layout::kSuper5>(table);
  add_quantized<Layout::kSix>(table);
  add_quantized<Layout::kE2M1>(table);
  add_quantized<Layout::kIQ4>(table);
  add_quantized<Layout::kSuperIQ4>(table);
  add_integer_tiles(table.integers);
  return table;
}

}  // namespace

const LinearKernels& linear_kernels() {
  static const LinearKernels table = make_kernels();
  return table;
}

}  // namespace tokenmill

// The kernels of a product. kernels.cpp defines them for the instruction set that this library is
// compiled for.
#pragma once

#include "linear/linear.h"

namespace tokenmill {

// A tile: some rows of inputs times one panel, over `steps` steps along k.
struct TileCall {
  const uint8_t* weights;  // the panel, at the first step
  const void* x;           // in the Element that LinearKernels::input has for the format
  int64_t x_stride;        // in elements
  const float* block_sums;  // [rows, steps]: sums of the inputs of each block (kQ4_1 only)
  int64_t block_sums_stride;
  int64_t steps;
  float* sums;       // [rows, 32]
  bool add_to_sums;  // false: overwrite the sums
  const uint8_t* prefetch;  // weights that are read next
  int prefetch_tiles;  // tiles that share the prefetch, at most kPrefetchTiles; 0: no prefetch
};
using Tile = void (*)(const TileCall&);

constexpr int kMaxTileRows = 12;
constexpr int kPrefetchTiles = 4;

// The end of a product: bias, SiLU(gate) * up, the residual, rounding.
struct FinishCall {
  const float* sums;  // [rows, 32]
  int64_t rows;
  const float* bias;  // [32], or null
  bool gate_up;       // the result has 16 columns instead of 32
  void* out;          // the panel's first column of the first row
  int64_t out_stride;
  Element out_type;
  bool add_to_out;
  int columns;  // columns to write: fewer than 32 (16 with gate_up) at the right edge
};

struct LinearKernels {
  int max_tile_rows;
  Element input[kNumFormats];  // type of the inputs that tiles of a format read
  Tile tile[kNumFormats][kMaxTileRows + 1];  // by rows; [0] is unused
  void (*finish)(const FinishCall&);
  void (*widen)(const uint16_t* bf16, int64_t count, float* out);
  // Sums of each block of 32 of `count` elements.
  void (*sum_blocks)(const void* x, int64_t count, float* sums);
};

const LinearKernels& linear_kernels();

}  // namespace tokenmill

// The kernels of a product. kernels.cpp defines them for the instruction set that this library is
// compiled for.
#pragma once

#include "linear/linear.h"

namespace tokenmill {

// 32 inputs of a row, rounded to int8.
//
// A block may have a rest: a second block with its rounding errors, rounded to int8. With kTwoInt8
// every block has a rest. With kInt8 a block has a rest if its largest input is much larger than the
// others, because the scale is then too coarse for the others. A row has all its blocks, then all
// their rests; an unused rest is all zeros.
struct InputBlock {
  int8_t values[kBlock];
  float scale;         // an input is about scale * value
  float sum;           // scale * the sum of the values
  int32_t offsets[2];  // start values of the sums of 16 inputs each; a sum of all 32 has the first
  int32_t has_rest;
};

// A tile: some rows of inputs times one panel, over `steps` steps along k.
struct TileCall {
  const uint8_t* weights;  // the panel, at the first step
  const void* x;           // as TileSet::input says
  int64_t x_stride;        // from row to row, in floats, bfloat16 numbers, or bytes (kBlocks)
  const float* group_sums;  // [rows, groups]: sums of inputs that share a minimum; null without minima
  int64_t group_sums_stride;
  int64_t rests_at;  // bytes from a block to its rest (kBlocks)
  int64_t steps;
  float* sums;       // [rows, 32]
  bool add_to_sums;  // false: overwrite the sums
  const uint8_t* prefetch;  // weights that are read next
  int prefetch_tiles;  // tiles that share the prefetch, at most kPrefetchTiles; 0: no prefetch
};
using Tile = void (*)(const TileCall&);

constexpr int kMaxTileRows = 12;
constexpr int kPrefetchTiles = 4;

enum class Input { kF32, kBF16, kBlocks };

struct TileSet;

// Converts steps of a panel into the form that other tiles read.
struct Unpacking {
  void (*unpack)(const uint8_t* weights, int64_t steps, uint8_t* unpacked);
  const TileSet* tiles;
  int64_t steps_of_step;  // steps of those tiles for a step of the weights
  int64_t step_bytes;     // of such a step
};

// The tiles of a layout for one type of inputs.
struct TileSet {
  Input input;
  int max_rows;
  // The number that is added to weights before they are multiplied (kBlocks): InputBlock::offsets
  // takes it off again.
  int zero;
  Tile tile[kMaxTileRows + 1];  // by rows; [0] is unused
  int64_t prefetch_above;  // up to this many rows, the CPU prefetches better by itself
  // With more rows than this, a panel is unpacked once for all rows.
  int64_t unpack_above;
  Unpacking unpacking;
};

// The end of a product: bias, activation(gate) * up, the residual, rounding.
struct FinishCall {
  const float* sums;  // [rows, 32]
  int64_t rows;
  const float* bias;  // [32], or null
  bool gate_up;       // the result has 16 columns instead of 32
  Activation activation;
  void* out;          // the panel's first column of the first row
  int64_t out_stride;
  Element out_type;
  bool add_to_out;
  int columns;  // columns to write: fewer than 32 (16 with gate_up) at the right edge
};

struct LinearKernels {
  TileSet floats[kNumLayouts];
  TileSet integers[kNumLayouts];  // of quantized layouts
  void (*finish)(const FinishCall&);
};

const LinearKernels& linear_kernels();
// Each adds some layouts' tiles with int8 inputs to a table by layout. They take longest to compile,
// so each has a file, for another compiler at the same time.
void add_tiles_of_blocks(TileSet* sets);
void add_tiles_of_super_blocks(TileSet* sets);
void add_tiles_of_small_groups(TileSet* sets);  // 16 weights share a scale
void add_tiles_of_tables(TileSet* sets);

inline const TileSet& tiles_for(const PackedLinear& weights) {
  const LinearKernels& all = linear_kernels();
  const bool in_floats =
      weights.input_precision == InputPrecision::kFloat || !is_quantized(weights.layout);
  return (in_floats ? all.floats : all.integers)[static_cast<int>(weights.layout)];
}

}  // namespace tokenmill

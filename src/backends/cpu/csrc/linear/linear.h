// Packed weights, and matrix products with them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tokenmill {

// Weights are stored in panels of 32 output rows. Within a panel the rows are interleaved: one
// 64-byte line holds the same pair of inputs of 16 rows, in the order that the kernels of every
// instruction set need. A product reads a panel once, from front to back.
constexpr int kPanelRows = 32;
constexpr int kLaneRows = 16;  // rows in one 512-bit register; a panel is two of these
constexpr int kLineBytes = 64;
constexpr int kBlock = 32;        // inputs of a block
constexpr int kSuperBlock = 256;  // inputs of a super-block

// The layout of stored weights. A step is the part of a panel for one, two, 32 or 256 inputs.
//
// Quantized numbers are integers. In a block, each half of the panel has lines: line i has, for
// each of its 16 rows, the bytes of inputs 4i to 4i + 3. Smaller numbers are split. Their lowest
// four bits are nibbles, and one line in memory has the nibbles of lines 2i and 2i + 1. (Of numbers
// below 4 bits, one line in memory has two bits each of lines 4i to 4i + 3.) Their upper bits
// follow as planes: one line in memory has one bit of 8 lines, or two bits of 4 lines.
//
// There are four quantized layouts, with variants:
// - blocks: weight = scale * number + minimum, fp16 scale and minimum for 32 inputs;
// - bytes: weight = scale * number, numbers of 8 bits with a sign, fp16 scale for 32 inputs. In
//   variants, the numbers are 4 bits that select an entry of a table (tables.h). E2M1 has bfloat16
//   scales;
// - super-blocks: as blocks, where scale and minimum are int8, times fp16 factors for 256 inputs;
// - six bits: weight = scale * (number - 32), where a scale is int8 for 16 inputs, times an fp16
//   factor for 256 inputs. Variants: three bits (number - 4); a table, and a scale for 32 inputs; two
//   bits with a minimum for 16 inputs, where one byte has scale and minimum, 4 bits each.
enum class Layout : int32_t {
  kF32 = 0,       // [panel][k][32] float
  kBF16 = 1,      // [panel][k / 2][32][2] bfloat16
  kBlocks4 = 2,   // [panel][k / 32]{[2][4 lines], [32] scale, [32] minimum}
  kBlocks5 = 3,   // [panel][k / 32]{[2][4 lines, plane], [32] scale, [32] minimum}
  kBytes = 4,     // [panel][k / 32]{[2][8 lines], [32] scale}
  kSuper4 = 5,    // [panel][k / 256]{[2][32] factors, [8]{[2][4 lines], [2][32] int8}}
  kSuper5 = 6,    // [panel][k / 256]{[2][32] factors, [8]{[2][4 lines, plane], [2][32] int8}}
  kSix = 7,       // [panel][k / 256]{[32] factor, [8]{[2][4 lines, 2 planes], [2][32] int8}}
  kE2M1 = 8,      // [panel][k / 32]{[2][4 lines], [32] scale}
  kIQ4 = 9,       // [panel][k / 32]{[2][4 lines], [32] scale}
  kSuperIQ4 = 10,  // [panel][k / 256]{[32] factor, [8]{[2][4 lines], [32] int8}}
  kThree = 11,     // [panel][k / 256]{[32] factor, [8]{[2][2 lines, plane], [2][32] int8}}
  kTwo = 12,       // [panel][k / 256]{[2][32] factors, [8]{[2][2 lines], [2][32] bytes}}
  kF16 = 13        // [panel][k][32] half precision
};
constexpr int kNumLayouts = 14;

enum class Element : int32_t { kF32 = 0, kBF16 = 1 };
constexpr int64_t size_of(Element element) { return element == Element::kF32 ? 4 : 2; }

// The gate's activation. GELU is its approximation by tanh.
enum class Activation : int32_t { kSilu = 0, kGelu = 1 };

// The inputs of a product with quantized weights: rounded to int8 with a scale for each 32 of a row
// (see InputBlock), unchanged, or as the sum of two such int8 numbers, which keeps 15 bits.
enum class InputPrecision : int32_t { kInt8 = 0, kFloat = 1, kTwoInt8 = 2 };

// One weight matrix, or the first of several segments, whose outputs lie side by side. With gate_up,
// panel i holds 16 rows of gate and the same 16 rows of up, and a product computes
// activation(gate) * up with n / 2 columns. structures.py has the same layout.
struct PackedLinear {
  const uint8_t* data;  // 64-byte aligned
  int64_t n;            // output rows, without padding; gate and up together
  int64_t k;            // inputs: even, and whole steps
  Layout layout;
  int32_t gate_up;
  Activation activation;  // with gate_up
  InputPrecision input_precision;
  const PackedLinear* next;  // the next segment, with the same k, or null
};

// out[rows, n] (+)= x[rows, k] W^T + bias. structures.py has the same layout.
struct LinearCall {
  const PackedLinear* weights;
  const void* x;  // float if has_float_inputs(layout), else bfloat16
  int64_t x_stride;  // in elements
  int64_t rows;
  const float* bias;  // [n], or null
  void* out;
  int64_t out_stride;  // in elements
  Element out_type;
  int32_t add_to_out;  // adds the product to out (the residual), rounded once
};

// The parts of a layout. A step consists of a header and blocks of 32 inputs.
struct Sizes {
  int64_t step_inputs;
  int64_t header_bytes;
  int64_t scales_bytes;  // of a block's scales, which follow its lines
  int bits;              // stored per number
  int number_bits;       // per number in a product, at most; 8 bits have a sign
  int zero;              // the number that means 0
  int group;             // inputs that share a scale
  bool has_minimum;

  constexpr int64_t blocks() const { return step_inputs / kBlock; }
  // The lines of half a panel in a block. Each bit of 32 inputs is a line.
  constexpr int64_t half_bytes() const { return bits * kLineBytes; }
  constexpr int64_t block_bytes() const { return 2 * half_bytes() + scales_bytes; }
  constexpr int64_t step_bytes() const { return header_bytes + blocks() * block_bytes(); }
  // Bits of a number in the lines before the planes.
  constexpr int low_bits() const { return bits == 8 ? 8 : bits < 4 ? 2 : 4; }
};
constexpr int64_t kBytesEach = kPanelRows, kHalvesEach = 2 * kPanelRows;
inline constexpr Sizes kSizesByLayout[kNumLayouts] = {
    {1, kPanelRows * 4, 0, 32, 32, 0, 1, false},
    {2, kPanelRows * 4, 0, 16, 16, 0, 1, false},
    {kBlock, 0, 2 * kHalvesEach, 4, 4, 0, kBlock, true},
    {kBlock, 0, 2 * kHalvesEach, 5, 5, 0, kBlock, true},
    {kBlock, 0, kHalvesEach, 8, 8, 0, kBlock, false},
    {kSuperBlock, 2 * kHalvesEach, 2 * kBytesEach, 4, 4, 0, kBlock, true},
    {kSuperBlock, 2 * kHalvesEach, 2 * kBytesEach, 5, 5, 0, kBlock, true},
    {kSuperBlock, kHalvesEach, 2 * kBytesEach, 6, 6, 32, 16, false},
    {kBlock, 0, kHalvesEach, 4, 5, 12, kBlock, false},
    {kBlock, 0, kHalvesEach, 4, 8, 0, kBlock, false},
    {kSuperBlock, kHalvesEach, kBytesEach, 4, 8, 0, kBlock, false},
    {kSuperBlock, kHalvesEach, 2 * kBytesEach, 3, 3, 4, 16, false},
    {kSuperBlock, 2 * kHalvesEach, 2 * kBytesEach, 2, 4, 0, 16, true},
    {1, kPanelRows * 2, 0, 16, 16, 0, 1, false},
};
constexpr const Sizes& sizes_of(Layout layout) { return kSizesByLayout[static_cast<int>(layout)]; }
constexpr int group_of(Layout layout) { return sizes_of(layout).group; }
constexpr bool is_quantized(Layout layout) { return group_of(layout) > 1; }
constexpr bool has_float_inputs(Layout layout) {
  return layout == Layout::kF32 || layout == Layout::kF16;
}
constexpr bool has_minimum(Layout layout) { return sizes_of(layout).has_minimum; }
// Whether one byte has the scale and the minimum of a group.
constexpr bool has_nibble_scales(Layout layout) { return layout == Layout::kTwo; }
constexpr bool is_signed(Layout layout) { return sizes_of(layout).number_bits == 8; }
constexpr int zero_of(Layout layout) { return sizes_of(layout).zero; }

// Columns of the result of one segment.
inline int64_t num_columns(const PackedLinear& w) { return w.gate_up ? w.n / 2 : w.n; }
// With gate_up, gate and up are padded to whole panels separately.
inline int64_t num_panels(const PackedLinear& w) {
  const int64_t rows = num_columns(w), width = w.gate_up ? kLaneRows : kPanelRows;
  return (rows + width - 1) / width;
}
inline int64_t panel_bytes(const PackedLinear& w) {
  const Sizes sizes = sizes_of(w.layout);
  return w.k / sizes.step_inputs * sizes.step_bytes();
}

// Computes one worker's part of a product, within a parallel region (see thread_pool.h). `out` may
// be read only after a barrier, because all workers write parts of a row.
void linear_part(const LinearCall& call, int worker, int workers);

// Computes a whole product, as one parallel region.
void linear(const LinearCall& call);

}  // namespace tokenmill

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
constexpr int kBlock = 32;     // inputs that share a scale in GGUF's block formats

enum class Format : int32_t {
  kF32 = 0,   // [panel][k][32] float
  kBF16 = 1,  // [panel][k / 2][32][2] bfloat16
  kQ4_0 = 2,  // [panel][k / 32]{[2][4][16] words of 2 x 4 nibbles, [32] d}
  kQ4_1 = 3,  // [panel][k / 32]{as Q4_0, [32] m}
  kQ8_0 = 4,  // [panel][k / 32]{[2][16][16][2] int8, [32] d}
};
constexpr int kNumFormats = 5;

enum class Element : int32_t { kF32 = 0, kBF16 = 1 };

// One weight matrix. With gate_up, panel i holds 16 rows of gate and the same 16 rows of up, and a
// product computes silu(gate) * up with n / 2 columns. structures.py has the same layout.
struct PackedLinear {
  const uint8_t* data;  // 64-byte aligned
  int64_t n;            // output rows, without padding; gate and up together
  int64_t k;            // inputs: even, and a multiple of 32 in block formats
  Format format;
  int32_t gate_up;
};

// out[rows, n] (+)= x[rows, k] W^T + bias. structures.py has the same layout.
struct LinearCall {
  const PackedLinear* weights;
  const void* x;  // float for kF32 weights, else bfloat16
  int64_t x_stride;  // in elements
  int64_t rows;
  const float* bias;  // [n], or null
  void* out;
  int64_t out_stride;  // in elements
  Element out_type;
  int32_t add_to_out;  // adds the product to out (the residual), rounded once
};

// Bytes of one step along k of a panel. A step is a block, a pair of inputs, or one input.
constexpr int64_t step_bytes(Format format) {
  return format == Format::kF32    ? kPanelRows * 4
         : format == Format::kBF16 ? kPanelRows * 4
         : format == Format::kQ4_0 ? kPanelRows * 18
         : format == Format::kQ4_1 ? kPanelRows * 20
                                   : kPanelRows * 34;
}
constexpr int64_t step_inputs(Format format) {
  return format == Format::kF32 ? 1 : format == Format::kBF16 ? 2 : kBlock;
}
constexpr bool is_block_format(Format format) { return format >= Format::kQ4_0; }

// With gate_up, gate and up are padded to whole panels separately.
inline int64_t num_panels(const PackedLinear& w) {
  const int64_t rows = w.gate_up ? w.n / 2 : w.n, width = w.gate_up ? kLaneRows : kPanelRows;
  return (rows + width - 1) / width;
}
inline int64_t panel_bytes(const PackedLinear& w) {
  return w.k / step_inputs(w.format) * step_bytes(w.format);
}

// Computes one worker's part of a product, within a parallel region (see thread_pool.h). `out` may
// be read only after a barrier, because all workers write parts of a row.
void linear_part(const LinearCall& call, int worker, int workers);

// Computes a whole product, as one parallel region.
void linear(const LinearCall& call);

}  // namespace tokenmill

// What the functions of elementwise.h, logits.h and weights.h need of an instruction set.
#pragma once

#include "elementwise.h"
#include "logits.h"
#include "weights.h"

namespace tokenmill {

struct ElementwiseKernels {
  void (*rms_norm)(const RmsNormCall&, int64_t, int64_t);
  void (*rotate_and_write[2])(const RotateAndWriteCall&, int64_t, int64_t);  // by Element
  void (*read_logits)(const LogitsCall&, int64_t, int64_t);  // of float alone
  void (*weigh_row)(const WeighCall&);
  void (*subtract_row)(const SubtractCall&);
};

// Those of the instruction set in use.
const ElementwiseKernels& elementwise_kernels();

const ElementwiseKernels* portable_elementwise();
#if defined(__x86_64__)
const ElementwiseKernels* avx2_elementwise();
const ElementwiseKernels* avx512_elementwise();
const ElementwiseKernels* avx512bf16_elementwise();
#endif

}  // namespace tokenmill

// The choice of the instruction set, and what is the same for all.
#include "elementwise.h"

#include <cstring>

#include "elementwise_kernels.h"
#include "instruction_sets.h"

namespace tokenmill {

const ElementwiseKernels& elementwise_kernels() {
#if defined(__x86_64__)
  const Kernels* chosen = &kernels();
  if (chosen == avx512bf16_kernels()) return *avx512bf16_elementwise();
  if (chosen == avx512_kernels()) return *avx512_elementwise();
  if (chosen == avx2_kernels()) return *avx2_elementwise();
#endif
  return *portable_elementwise();
}

void rms_norm(const RmsNormCall& call, int64_t row_begin, int64_t row_end) {
  elementwise_kernels().rms_norm[static_cast<int>(call.element)](call, row_begin, row_end);
}

void activate(const ActivateCall& call, int64_t row_begin, int64_t row_end) {
  elementwise_kernels().activate[static_cast<int>(call.element)](call, row_begin, row_end);
}

void rotate_and_write(const RotateAndWriteCall& call, int64_t begin, int64_t end) {
  const auto& by_element = elementwise_kernels().rotate_and_write;
  by_element[static_cast<int>(call.spec.element)](call, begin, end);
}

void read_logits(const LogitsCall& call, int64_t row_begin, int64_t row_end) {
  elementwise_kernels().read_logits(call, row_begin, row_end);
}

void embed(const EmbedCall& call, int64_t row_begin, int64_t row_end) {
  const int64_t row_bytes = call.size * (call.table_element == Element::kBF16 ? 2 : 4);
  const int64_t out_bytes = call.out_element == Element::kBF16 ? 2 : 4;
  const bool widen = call.table_element != call.out_element;
  for (int64_t row = row_begin; row < row_end; row++) {
    const auto* from = static_cast<const char*>(call.table) + call.token_ids[row] * row_bytes;
    char* to = static_cast<char*>(call.out) + row * call.out_stride * out_bytes;
    if (widen) {
      kernels().widen(reinterpret_cast<const uint16_t*>(from), call.size,
                      reinterpret_cast<float*>(to));
    } else {
      std::memcpy(to, from, row_bytes);
    }
  }
}

}  // namespace tokenmill

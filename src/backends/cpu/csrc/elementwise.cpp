// The choice of the instruction set, and what is the same for all.
#include "elementwise.h"

#include <algorithm>
#include <string_view>

#include "elementwise_kernels.h"
#include "instruction_sets.h"

namespace tokenmill {

const ElementwiseKernels& elementwise_kernels() {
#if defined(__x86_64__)
  // By name: asking another set for its table runs that set's code, which this CPU may not have.
  const std::string_view name = kernels().name;
  if (name == "avx512bf16") return *avx512bf16_elementwise();
  if (name == "avx512") return *avx512_elementwise();
  if (name == "avx2") return *avx2_elementwise();
#endif
  return *portable_elementwise();
}

void rms_norm(const RmsNormCall& call, int64_t row_begin, int64_t row_end) {
  elementwise_kernels().rms_norm(call, row_begin, row_end);
}

void rotate_and_write(const RotateAndWriteCall& call, int64_t begin, int64_t end) {
  const auto& by_element = elementwise_kernels().rotate_and_write;
  by_element[static_cast<int>(call.spec.element)](call, begin, end);
}

void read_logits(const LogitsCall& call, int64_t row_begin, int64_t row_end) {
  elementwise_kernels().read_logits(call, row_begin, row_end);
}

void embed(const EmbedCall& call, int64_t row_begin, int64_t row_end) {
  const auto* table = static_cast<const uint16_t*>(call.table);
  auto* out = static_cast<uint16_t*>(call.out);
  for (int64_t row = row_begin; row < row_end; row++) {
    const uint16_t* from = table + call.token_ids[row] * call.size;
    std::copy(from, from + call.size, out + row * call.out_stride);
  }
}

}  // namespace tokenmill

#include "elementwise/elementwise.h"

#include <algorithm>

namespace tokenmill {

void embed(const EmbedCall& call, int64_t row_begin, int64_t row_end) {
  const auto* table = static_cast<const uint16_t*>(call.table);
  auto* out = static_cast<uint16_t*>(call.out);
  for (int64_t row = row_begin; row < row_end; row++) {
    const uint16_t* from = table + call.token_ids[row] * call.size;
    std::copy(from, from + call.size, out + row * call.out_stride);
  }
}

}  // namespace tokenmill

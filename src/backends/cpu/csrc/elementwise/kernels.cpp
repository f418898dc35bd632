// The functions of elementwise.h for the instruction set that this library is compiled for.
#include "elementwise/norms.h"
#include "elementwise/rotation.h"

namespace tokenmill {

void rms_norm(const RmsNormCall& call, int64_t row_begin, int64_t row_end) {
  rms_norm_rows(call, row_begin, row_end);
}

void rotate_and_write(const RotateAndWriteCall& call, int64_t begin, int64_t end) {
  if (call.spec.element == Element::kF32) {
    rotate_and_write_tokens<float>(call, begin, end);
  } else {
    rotate_and_write_tokens<uint16_t>(call, begin, end);
  }
}

}  // namespace tokenmill

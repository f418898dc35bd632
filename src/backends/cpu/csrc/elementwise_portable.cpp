#include "elementwise_rows.h"
#include "logits_rows.h"
#include "rotation.h"
#include "weights_rows.h"

namespace tokenmill {

const ElementwiseKernels* portable_elementwise() {
  static const ElementwiseKernels table = {
      rms_norm_rows,
      {rotate_and_write_tokens<float>, rotate_and_write_tokens<uint16_t>},
      read_logits_rows,
      weigh_row,
      subtract_row,
  };
  return &table;
}

}  // namespace tokenmill

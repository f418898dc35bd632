// The functions of logits.h and weights.h, for the instruction set that this library is compiled
// for.
#include "sampling/logits_rows.h"
#include "sampling/weights_rows.h"

namespace tokenmill {

void read_logits(const LogitsCall& call, int64_t row_begin, int64_t row_end) {
  read_logits_rows(call, row_begin, row_end);
}

void mask_logits(const MaskCall& call, int64_t mask_begin, int64_t mask_end) {
  mask_logits_rows(call, mask_begin, mask_end);
}

void weigh_row(const WeighCall& call) { weigh_logits(call); }
void subtract_row(const SubtractCall& call) { subtract_weights(call); }

}  // namespace tokenmill

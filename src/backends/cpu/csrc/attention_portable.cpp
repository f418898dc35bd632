#include "attention_elements.h"
#include "attention_tiles.h"

namespace tokenmill {

const AttentionKernels* portable_attention() {
  static const AttentionKernels table = {
      {pack<FloatElements>, pack<WidenedElements>},
      {attend<FloatElements>, attend<WidenedElements>},
      merge,
      {finish_row<float>, finish_row<uint16_t>},
  };
  return &table;
}

}  // namespace tokenmill

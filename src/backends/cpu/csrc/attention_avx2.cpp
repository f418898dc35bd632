#include "attention_elements.h"
#include "attention_tiles.h"

#if defined(__x86_64__)
namespace tokenmill {

const AttentionKernels* avx2_attention() {
  static const AttentionKernels table = {
      {pack<FloatElements>, pack<WidenedElements>},
      {attend<FloatElements>, attend<WidenedElements>},
      merge,
      {finish_row<float>, finish_row<uint16_t>},
  };
  return &table;
}

}  // namespace tokenmill
#endif

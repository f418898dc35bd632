#include "attention/kernels.h"

#include "attention/elements.h"
#include "attention/tiles.h"
#if defined(__AVX512BF16__)
#include "attention/bf16_elements.h"
#endif

namespace tokenmill {
namespace {

#if defined(__AVX512BF16__)
using BF16 = BF16Elements;
#else
using BF16 = WidenedElements;
#endif

constexpr AttentionKernels kKernels = {
    {pack<FloatElements>, pack<BF16>},
    {attend<FloatElements>, attend<BF16>},
    merge,
    {finish_row<float>, finish_row<uint16_t>},
};

}  // namespace

const AttentionKernels& attention_kernels() { return kKernels; }

}  // namespace tokenmill

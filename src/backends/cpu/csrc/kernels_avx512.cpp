#include "float_kernels.h"

#if defined(__x86_64__)
namespace tokenmill {

const Kernels* avx512_kernels() {
  static const Kernels table = make_float_kernels("avx512");
  return &table;
}

}  // namespace tokenmill
#endif

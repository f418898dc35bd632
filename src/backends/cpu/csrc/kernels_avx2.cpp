#include "float_kernels.h"

#if defined(__x86_64__)
namespace tokenmill {

const Kernels* avx2_kernels() {
  static const Kernels table = make_float_kernels("avx2");
  return &table;
}

}  // namespace tokenmill
#endif

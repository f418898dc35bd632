#include "float_kernels.h"

namespace tokenmill {

const Kernels* portable_kernels() {
  static const Kernels table = make_float_kernels("portable");
  return &table;
}

}  // namespace tokenmill

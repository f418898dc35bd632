// The interface of a separate library: Python calls it before it compiles or loads the kernels.
#include "abi/c_abi.h"
#include "features/cpu_features.h"

TM_API const char* tm_supported_sets() noexcept {
  static const std::string names = tokenmill::supported_sets();
  return names.c_str();
}
TM_API const char* tm_cpu_identity() noexcept {
  static const std::string text = tokenmill::cpu_identity();
  return text.c_str();
}

#include "instruction_sets.h"

#include <cstring>
#include <string>
#include <vector>

namespace tokenmill {
namespace {

// The compiler's own builtin asks cpuid and whether the operating system keeps the registers.
std::vector<const Kernels*> supported_kernels() {
  std::vector<const Kernels*> found;
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vl");
  if (avx512 && __builtin_cpu_supports("avx512bf16")) found.push_back(avx512bf16_kernels());
  if (avx512) found.push_back(avx512_kernels());
  if (avx2) found.push_back(avx2_kernels());
#endif
  found.push_back(portable_kernels());
  return found;
}

const std::vector<const Kernels*>& supported() {
  static const std::vector<const Kernels*> found = supported_kernels();
  return found;
}

const Kernels*& chosen() {
  static const Kernels* kernels = supported().front();
  return kernels;
}

}  // namespace

const Kernels& kernels() { return *chosen(); }

const char* instruction_sets() {
  static const std::string names = [] {
    std::string joined;
    for (const Kernels* one : supported()) {
      if (!joined.empty()) joined += ",";
      joined += one->name;
    }
    return joined;
  }();
  return names.c_str();
}

bool use_instruction_set(const char* name) {
  for (const Kernels* one : supported()) {
    if (std::strcmp(one->name, name) != 0) continue;
    chosen() = one;
    return true;
  }
  return false;
}

}  // namespace tokenmill

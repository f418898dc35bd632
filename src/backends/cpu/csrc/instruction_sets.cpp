#include "instruction_sets.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <cstring>
#include <string>
#include <vector>

namespace tokenmill {
namespace {

#if defined(__x86_64__)

struct Features {
  bool avx2 = false, avx512 = false, avx512bf16 = false;
};

// Registers that the operating system saves when it switches threads: XCR0.
uint64_t saved_registers() {
  uint32_t low, high;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return static_cast<uint64_t>(high) << 32 | low;
}

// By cpuid, as Intel's manual, volume 2, and AMD's, volume 3, number the bits. The compilers'
// __builtin_cpu_supports would do, but clang's does not link into a library everywhere.
Features read_features() {
  const auto bit = [](uint32_t word, int index) { return (word >> index & 1) != 0; };
  Features found;
  uint32_t a, b, c, d;
  if (!__get_cpuid(1, &a, &b, &c, &d)) return found;
  const bool fma = bit(c, 12), xsave = bit(c, 27), f16c = bit(c, 29);
  if (!xsave || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) return found;
  const uint64_t saved = saved_registers();
  const bool saves_256_bits = (saved & 0x6) == 0x6, saves_512_bits = (saved & 0xe6) == 0xe6;
  found.avx2 = saves_256_bits && fma && f16c && bit(b, 5);
  const bool f_dq_bw_vl = bit(b, 16) && bit(b, 17) && bit(b, 30) && bit(b, 31);
  found.avx512 = found.avx2 && saves_512_bits && f_dq_bw_vl;
  if (found.avx512 && a >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d))
    found.avx512bf16 = bit(a, 5);
  return found;
}

#endif

std::vector<const Kernels*> supported_kernels() {
  std::vector<const Kernels*> found;
#if defined(__x86_64__)
  const Features features = read_features();
  if (features.avx512bf16) found.push_back(avx512bf16_kernels());
  if (features.avx512) found.push_back(avx512_kernels());
  if (features.avx2) found.push_back(avx2_kernels());
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

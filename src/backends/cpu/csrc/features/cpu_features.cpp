#include "features/cpu_features.h"

#include <cstdint>
#include <cstdio>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace tokenmill {
namespace {

#if defined(__x86_64__)

struct Registers {
  uint32_t a = 0, b = 0, c = 0, d = 0;
};

// One cpuid leaf; zeros if this CPU does not have it.
Registers read_cpuid(uint32_t leaf, uint32_t subleaf) {
  Registers read;
  __get_cpuid_count(leaf, subleaf, &read.a, &read.b, &read.c, &read.d);
  return read;
}

bool bit(uint32_t word, int index) { return (word >> index & 1) != 0; }

// CPU features from cpuid. Bits are numbered as in Intel's manual, volume 2, and AMD's, volume 3.
// __builtin_cpu_supports is not used, because clang's does not link into a library everywhere.
struct Features {
  Registers model = read_cpuid(1, 0), extended = read_cpuid(7, 0), more;
  uint64_t saved = 0;  // registers that the operating system saves when it switches threads: XCR0

  Features() {
    if (extended.a >= 1) more = read_cpuid(7, 1);
    if (!bit(model.c, 27)) return;  // the CPU has no xgetbv
    uint32_t low, high;
    asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    saved = static_cast<uint64_t>(high) << 32 | low;
  }

  bool avx2() const {
    const bool fma = bit(model.c, 12), f16c = bit(model.c, 29);
    return (saved & 0x6) == 0x6 && fma && f16c && bit(extended.b, 5);
  }
  bool avxvnni() const { return avx2() && bit(more.a, 4); }
  bool avx512() const {
    const uint32_t b = extended.b;
    const bool f_dq_bw_vl = bit(b, 16) && bit(b, 17) && bit(b, 30) && bit(b, 31);
    return avx2() && (saved & 0xe6) == 0xe6 && f_dq_bw_vl;
  }
  bool avx512vnni() const { return avx512() && bit(extended.c, 11); }
  bool avx512bf16() const { return avx512vnni() && bit(more.a, 5); }
};

#endif

}  // namespace

std::string supported_sets() {
  std::string names;
#if defined(__x86_64__)
  const Features features;
  if (features.avx512bf16()) names += "avx512bf16,";
  if (features.avx512vnni()) names += "avx512vnni,";
  if (features.avx512()) names += "avx512,";
  if (features.avxvnni()) names += "avxvnni,";
  if (features.avx2()) names += "avx2,";
#endif
  return names + "portable";
}

std::string cpu_identity() {
  std::string text;
#if defined(__x86_64__)
  const Features features;
  const Registers &model = features.model, &extended = features.extended;
  // model.b and extended.a are left out: model.b contains the number of the calling core.
  for (const uint64_t word : {uint64_t{model.a}, uint64_t{model.c}, uint64_t{model.d},
                              uint64_t{extended.b}, uint64_t{extended.c}, uint64_t{extended.d},
                              uint64_t{features.more.a}, features.saved}) {
    char digits[20];
    std::snprintf(digits, sizeof(digits), "%llx.", static_cast<unsigned long long>(word));
    text += digits;
  }
#endif
  return text;
}

}  // namespace tokenmill

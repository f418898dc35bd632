// Features of x86-64 CPUs, from cpuid.
#pragma once

#include <cpuid.h>

#include <cstdint>
#include <cstdio>
#include <string>

namespace tokenmill {
namespace {

struct Registers {
  uint32_t a = 0, b = 0, c = 0, d = 0;
};

// One cpuid leaf; zeros if this CPU does not have it.
inline Registers read_cpuid(uint32_t leaf, uint32_t subleaf) {
  Registers read;
  __get_cpuid_count(leaf, subleaf, &read.a, &read.b, &read.c, &read.d);
  return read;
}

inline bool bit(uint32_t word, int index) { return (word >> index & 1) != 0; }

// Bits are numbered as in Intel's manual, volume 2, and AMD's, volume 3. __builtin_cpu_supports is
// not used, because clang's does not link into a library everywhere.
class Features {
 public:
  Features() {
    if (extended_.a >= 1) more_ = read_cpuid(7, 1);
    if (!bit(model_.c, 27)) return;  // the CPU has no xgetbv
    uint32_t low, high;
    asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    saved_ = static_cast<uint64_t>(high) << 32 | low;
  }

  // Names of instruction sets, best first, each followed by a comma.
  std::string sets() const {
    std::string names;
    if (avx512bf16()) names += "avx512bf16,";
    if (avx512vnni()) names += "avx512vnni,";
    if (avx512()) names += "avx512,";
    if (avxvnni()) names += "avxvnni,";
    if (avx2()) names += "avx2,";
    return names;
  }

  std::string identity() const {
    std::string text;
    // model_.b and extended_.a are left out: model_.b contains the number of the calling core.
    for (const uint64_t word : {uint64_t{model_.a}, uint64_t{model_.c}, uint64_t{model_.d},
                                uint64_t{extended_.b}, uint64_t{extended_.c},
                                uint64_t{extended_.d}, uint64_t{more_.a}, saved_}) {
      char digits[20];
      std::snprintf(digits, sizeof(digits), "%llx.", static_cast<unsigned long long>(word));
      text += digits;
    }
    return text;
  }

 private:
  bool avx2() const {
    const bool fma = bit(model_.c, 12), f16c = bit(model_.c, 29);
    return (saved_ & 0x6) == 0x6 && fma && f16c && bit(extended_.b, 5);
  }
  bool avxvnni() const { return avx2() && bit(more_.a, 4); }
  bool avx512() const {
    const uint32_t b = extended_.b;
    const bool f_dq_bw_vl = bit(b, 16) && bit(b, 17) && bit(b, 30) && bit(b, 31);
    return avx2() && (saved_ & 0xe6) == 0xe6 && f_dq_bw_vl;
  }
  bool avx512vnni() const { return avx512() && bit(extended_.c, 11); }
  bool avx512bf16() const { return avx512vnni() && bit(more_.a, 5); }

  Registers model_ = read_cpuid(1, 0), extended_ = read_cpuid(7, 0), more_;
  uint64_t saved_ = 0;  // registers that the operating system saves when it switches threads: XCR0
};

}  // namespace
}  // namespace tokenmill

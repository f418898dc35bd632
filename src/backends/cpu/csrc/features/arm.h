// Features of 64-bit ARM CPUs, as the operating system reports them.
#pragma once

#include <string>

#if defined(__linux__)
#include <sys/auxv.h>

#include <cstdio>
#include <fstream>
#include <set>
#elif defined(__APPLE__)
#include <sys/sysctl.h>
#endif

namespace tokenmill {
namespace {

// The sets are compiled for ARMv8.2, which has atomic instructions; the compiler may use them.
class Features {
 public:
  // Names of instruction sets, best first, each followed by a comma.
  std::string sets() const {
    std::string names;
    if (i8mm()) names += "i8mm,";
    if (dotprod()) names += "dotprod,";
    return names;
  }

#if defined(__linux__)

  // The features, and the different kinds of cores: a CPU may have fast and slow ones.
  std::string identity() const {
    char digits[40];
    std::snprintf(digits, sizeof(digits), "%lx.%lx.", first_, second_);
    std::set<std::string> kinds;
    std::ifstream info("/proc/cpuinfo");
    for (std::string line; std::getline(info, line);)
      if (line.compare(0, 4, "CPU ") == 0) kinds.insert(line);
    std::string text = digits;
    for (const std::string& line : kinds) text += line + ".";
    return text;
  }

 private:
  static bool bit(unsigned long word, int index) { return (word >> index & 1) != 0; }
  // Bits are numbered as in Linux' arch/arm64/include/uapi/asm/hwcap.h.
  bool atomics() const { return bit(first_, 8); }
  bool dotprod() const { return atomics() && bit(first_, 20); }
  bool i8mm() const { return dotprod() && bit(second_, 13); }

  unsigned long first_ = getauxval(AT_HWCAP), second_ = getauxval(AT_HWCAP2);

#elif defined(__APPLE__)

  std::string identity() const {
    char name[256] = {};
    size_t size = sizeof(name) - 1;
    sysctlbyname("machdep.cpu.brand_string", name, &size, nullptr, 0);
    return name;
  }

 private:
  static bool has(const char* feature) {
    int value = 0;
    size_t size = sizeof(value);
    return sysctlbyname(feature, &value, &size, nullptr, 0) == 0 && value != 0;
  }
  bool atomics() const { return has("hw.optional.arm.FEAT_LSE"); }
  bool dotprod() const { return atomics() && has("hw.optional.arm.FEAT_DotProd"); }
  bool i8mm() const { return dotprod() && has("hw.optional.arm.FEAT_I8MM"); }

#else

  std::string identity() const { return ""; }

 private:
  bool dotprod() const { return false; }
  bool i8mm() const { return false; }

#endif
};

}  // namespace
}  // namespace tokenmill

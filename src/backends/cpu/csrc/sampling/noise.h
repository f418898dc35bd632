// Random numbers that depend only on seed and position, equal to those of noise.py (see there).
#pragma once

#include <cstdint>

namespace tokenmill {

constexpr uint64_t kGolden = 0x9E3779B97F4A7C15u;

inline uint64_t mix(uint64_t x) {
  x += kGolden;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

// A random number in (0, 1). The seed includes the number's purpose.
inline double uniform(int64_t seed, int64_t position) {
  const uint64_t mixed =
      mix(mix(static_cast<uint64_t>(seed)) + static_cast<uint64_t>(position) * kGolden);
  return (static_cast<double>(mixed >> 12) + 0.5) * 0x1p-52;
}

}  // namespace tokenmill

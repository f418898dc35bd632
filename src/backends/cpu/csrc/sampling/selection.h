// Selection of the bound that keeps the k largest numbers, or the largest ones with a given sum.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>

#include "threads/scratch.h"

namespace tokenmill {

// Both functions find a bound: the largest value for which the values at or above it have measures
// that add up to `wanted`, which is above 0. The order of additions depends only on the values. The
// array of values is overwritten.

// Selects by partitioning: linear on average, quadratic in the worst case. Returns the smallest
// value if the measures of all values add up to less.
template <class Measure>
float select_by_partition(float* values, int64_t count, double wanted, Measure measure) {
  float *begin = values, *end = values + count;
  float pivot = 0.0f;
  while (begin < end) {
    const float a = begin[0], b = begin[(end - begin) / 2], c = end[-1];
    pivot = std::max(std::min(a, b), std::min(std::max(a, b), c));
    double above = 0.0, equal = 0.0;
    float *larger = begin, *at = begin, *smaller = end;
    while (at < smaller) {
      if (*at > pivot) {
        above += measure(*at);
        std::swap(*larger++, *at++);
      } else if (*at < pivot) {
        std::swap(*at, *--smaller);
      } else {
        equal += measure(*at++);
      }
    }
    if (above >= wanted) {
      end = larger;
    } else if (above + equal >= wanted) {
      return pivot;
    } else {
      wanted -= above + equal;
      begin = smaller;
    }
  }
  return pivot;
}

// Selects by the digits of the values' bits, whose order is that of the values in [0, 1]: the
// highest 16 bits first, then 8, then 8. Slower for few values, but always linear. Returns 0 if the
// measures of all values add up to less.
template <class Measure>
float select_by_digits(float* values, int64_t count, double wanted, Measure measure,
                       Scratch& scratch) {
  constexpr uint32_t kHighest = 0x3f800000;  // 1.0f
  auto* bins = static_cast<double*>(scratch.bytes(((kHighest >> 16) + 1) * sizeof(double)));
  uint32_t found_bits = 0;
  for (const int shift : {16, 8, 0}) {
    const int num_bins = shift == 16 ? (kHighest >> 16) + 1 : 256;
    const auto bin_of = [=](float value) {
      uint32_t bits;
      std::memcpy(&bits, &value, sizeof(bits));
      return static_cast<int>(shift == 16 ? bits >> 16 : bits >> shift & 255);
    };
    std::fill(bins, bins + num_bins, 0.0);
    for (int64_t i = 0; i < count; i++) bins[bin_of(values[i])] += measure(values[i]);
    int bin = num_bins - 1;
    while (bin > 0 && bins[bin] < wanted) wanted -= bins[bin--];
    found_bits |= static_cast<uint32_t>(bin) << shift;
    int64_t kept = 0;
    for (int64_t i = 0; i < count; i++)
      if (bin_of(values[i]) == bin) values[kept++] = values[i];
    count = kept;
  }
  float found;
  std::memcpy(&found, &found_bits, sizeof(found));
  return found;
}

}  // namespace tokenmill

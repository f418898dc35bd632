// The greatest of some numbers that has enough of them, or of their sum, from it on upwards.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>

#include "scratch.h"

namespace tokenmill {

// Each finds the greatest value such that the measures of all values of at least that size add up to
// `wanted` (above 0); the least one when all together have less. Measures are added in an order that
// depends on the values alone. The values are lost.

// By partitioning: linear on average.
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

// Values in [0, 1], which order as their bits do: their upper halves are bins, and only one bin is
// partitioned.
template <class Measure>
float select_in_bin(float* values, int64_t count, double wanted, Measure measure, Scratch& scratch) {
  constexpr int kBins = (0x3f800000 >> 16) + 1;
  const auto bin_of = [](float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof(bits));
    return bits >> 16;
  };
  auto* bins = static_cast<double*>(scratch.bytes(kBins * sizeof(double)));
  std::fill(bins, bins + kBins, 0.0);
  for (int64_t i = 0; i < count; i++) bins[bin_of(values[i])] += measure(values[i]);
  int bin = kBins - 1;
  while (bin > 0 && bins[bin] < wanted) wanted -= bins[bin--];
  int64_t found = 0;
  for (int64_t i = 0; i < count; i++)
    if (bin_of(values[i]) == static_cast<uint32_t>(bin)) values[found++] = values[i];
  return select_by_partition(values, found, wanted, measure);
}

}  // namespace tokenmill

// The greatest of some numbers that has enough of them, or of their sum, from it on upwards.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>

#include "threads/scratch.h"

namespace tokenmill {

// Each finds the greatest value such that the measures of all values of at least that size add up to
// `wanted` (above 0). Measures are added in an order that depends on the values alone; the values are
// lost.

// By partitioning: linear on average, quadratic at worst. The least value when all together have less.
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

// By the digits of their bits, as which values in [0, 1] order: the highest 16 first, then 8, then 8.
// Slower for a few, but linear whatever the values are. 0 when all together have less.
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

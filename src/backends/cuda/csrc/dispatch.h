// Turns the element types of a call into C++ types.
#pragma once

#include "calls.h"
#include "fp8.h"

namespace tokenmill {

inline int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Calls `use` with a value of the cache's element type: T, unless the cache holds FP8.
template <typename T, typename Use>
const char* for_cache(Element element, Use use) {
  switch (element) {
    case Element::E4M3: return use(E4M3{});
    case Element::E5M2: return use(E5M2{});
    default: return use(T{});
  }
}

}  // namespace tokenmill

// Tables of the numbers that 4 bits stand for.
#pragma once

#include "linear/linear.h"

namespace tokenmill {

constexpr int8_t kIQ4Numbers[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                    1,    13,   25,  38,  53,  69,  89,  113};
// Twice the numbers of E2M1, and 12, which makes them unsigned.
constexpr int8_t kE2M1Numbers[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};

// The table of a layout, or null.
constexpr const int8_t* table_of(Layout layout) {
  return layout == Layout::kE2M1                                    ? kE2M1Numbers
         : layout == Layout::kIQ4 || layout == Layout::kSuperIQ4 ? kIQ4Numbers
                                                                    : nullptr;
}

}  // namespace tokenmill

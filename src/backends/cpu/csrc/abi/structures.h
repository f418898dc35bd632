// How the structures that Python shares lie in memory.
#pragma once

#include <cstdint>

namespace tokenmill {

// One field, or a whole structure where `field` is null. Python reads this without a check.
struct FieldLayout {
  const char* structure;
  const char* field;
  int64_t offset;
  int64_t size;
};

// Every structure of structures.py, each followed by its fields; the last entry's structure is null.
const FieldLayout* structures();

}  // namespace tokenmill

// The memory layout of the structures that are shared with Python.
#pragma once

#include <cstdint>

namespace tokenmill {

// Layout of one field, or of a whole structure if `field` is null. It must not change: Python reads
// it without a check.
struct FieldLayout {
  const char* structure;
  const char* field;
  int64_t offset;
  int64_t size;
};

// Every structure of structures.py, each followed by its fields. The last entry's structure is
// null.
const FieldLayout* structures();

}  // namespace tokenmill

// Exports functions with C linkage, and turns exceptions into a status.
#pragma once

#include <new>

#define TM_API extern "C" __attribute__((visibility("default")))

namespace tokenmill {

// Return value of functions that may fail. `Status` of library.py must be the same.
enum class Status : int { kDone = 0, kOutOfMemory = 1, kFailed = 2 };

template <class Function>
Status guarded(Function&& function) noexcept {
  try {
    function();
    return Status::kDone;
  } catch (const std::bad_alloc&) {
    return Status::kOutOfMemory;
  } catch (...) {
    return Status::kFailed;
  }
}

}  // namespace tokenmill

// How functions leave the library: by the rules of C, and without exceptions.
#pragma once

#include <new>

#define TM_API extern "C" __attribute__((visibility("default")))

namespace tokenmill {

// What functions that allocate return; `Status` of library.py.
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

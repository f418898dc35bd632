// Memory for intermediate results.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <new>

namespace tokenmill {

// One thread's memory, which only grows. Its contents are lost when it grows.
class Scratch {
 public:
  ~Scratch() { std::free(at_); }
  // Both throw std::bad_alloc.
  float* floats(int64_t count) { return static_cast<float*>(bytes(count * sizeof(float))); }
  void* bytes(int64_t size) {
    if (size > size_) grow(size);
    return at_;
  }

 private:
  void grow(int64_t size) {
    std::free(at_);
    size_ = 0;
    const int64_t rounded = (size + 4095) / 4096 * 4096;
    at_ = std::aligned_alloc(64, rounded);
    if (at_ == nullptr) throw std::bad_alloc();
    size_ = rounded;
  }

  void* at_ = nullptr;
  int64_t size_ = 0;
};

}  // namespace tokenmill

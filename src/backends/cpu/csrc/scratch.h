// Room for intermediate results.
#pragma once

#include <cstdint>
#include <cstdlib>

namespace tokenmill {

// Memory of one thread that only grows.
class Scratch {
 public:
  ~Scratch() { std::free(at_); }
  float* floats(int64_t count) { return static_cast<float*>(bytes(count * sizeof(float))); }
  void* bytes(int64_t size) {
    if (size > size_) {
      std::free(at_);
      size_ = (size + 4095) / 4096 * 4096;
      at_ = std::aligned_alloc(64, size_);
      if (at_ == nullptr) std::abort();  // no exception crosses the C interface
    }
    return at_;
  }

 private:
  void* at_ = nullptr;
  int64_t size_ = 0;
};

}  // namespace tokenmill

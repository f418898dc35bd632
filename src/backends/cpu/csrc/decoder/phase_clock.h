// Ends the phases of a step, and measures them.
#pragma once

#include <chrono>
#include <cstdint>

#include "decoder/decoder.h"
#include "threads/thread_pool.h"

namespace tokenmill {

// One worker's phases. Without counters, nothing is measured.
class PhaseClock {
 public:
  explicit PhaseClock(int64_t* nanoseconds) : nanoseconds_(nanoseconds) {
    if (nanoseconds_ != nullptr) last_ = Clock::now();
  }
  // Adds the time since the last lap to a phase.
  void lap(Phase phase) {
    if (nanoseconds_ == nullptr) return;
    const Clock::time_point now = Clock::now();
    nanoseconds_[static_cast<int>(phase)] += std::chrono::nanoseconds(now - last_).count();
    last_ = now;
  }
  // Ends a phase with a barrier, so that the next phase may read what all workers wrote.
  void finish(Phase phase) {
    lap(phase);
    barrier();
    lap(Phase::kWait);
  }

 private:
  using Clock = std::chrono::steady_clock;
  int64_t* nanoseconds_;
  Clock::time_point last_;
};

}  // namespace tokenmill

// Ends the phases of a step, measures them, and marks the ends of its regions.
#pragma once

#include <chrono>
#include <cstdint>

#include "decoder/decoder.h"
#include "threads/thread_pool.h"

namespace tokenmill {

// One worker's phases and regions. Without counters no phase is measured, without room for marks no
// region.
class PhaseClock {
 public:
  PhaseClock(int64_t* nanoseconds, int64_t* marks) : nanoseconds_(nanoseconds), marks_(marks) {
    if (nanoseconds_ != nullptr) last_ = Clock::now();
    mark();
  }
  // Ends a region, and begins the next one.
  void mark() {
    if (marks_ == nullptr) return;
    *marks_++ = std::chrono::nanoseconds(Clock::now().time_since_epoch()).count();
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
  int64_t* marks_;
  Clock::time_point last_;
};

}  // namespace tokenmill

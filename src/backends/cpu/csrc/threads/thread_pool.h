// Persistent threads that share one computation at a time. The calling thread is worker 0.
#pragma once

#include <chrono>
#include <type_traits>

namespace tokenmill {

// Starts `threads - 1` workers, or fewer if the system refuses more, and ends the earlier workers.
// Worker i is pinned to cpus[i] (null, or one thread: not pinned). The calling thread may belong to
// the user's program, so it is pinned within regions only: unpinned, it would at times be given the
// CPU of another worker, and both would wait for each other. Must not be called within a parallel
// region. If memory runs out, it throws and changes nothing.
void set_threads(int threads, const int* cpus);
int num_threads();

using Task = void (*)(void* context, int worker, int workers);

// Runs task on all workers and returns when the last one is done. Calls from several threads run
// one after the other. A call within a region runs on its thread only, as worker 0 of 1. If a
// worker's part throws, the others leave at their next barrier, and the first exception is thrown
// here.
void run_parallel(Task task, void* context);

// Waits, within a region, until all its workers have arrived. Their earlier writes are visible
// then. Throws if another worker's part has failed, to end this worker's part.
void barrier();

template <class Function>
void parallel(Function&& function) {
  run_parallel(
      [](void* context, int worker, int workers) {
        (*static_cast<std::remove_reference_t<Function>*>(context))(worker, workers);
      },
      const_cast<void*>(static_cast<const void*>(&function)));
}

// Lets another thread of the same core compute for a moment.
void pause_cpu();

// Looks again and again until `is_done()`, for a limited time. Returns whether it is. Within a forward
// pass the next work comes within microseconds, and waking a thread costs more than a small product.
// After that time, another process probably uses the other thread's core, and may need this one.
template <class Predicate>
bool spin_until(Predicate is_done) {
  constexpr auto kSpinTime = std::chrono::microseconds(40);
  constexpr int kPausesPerLook = 32;
  const auto give_up = std::chrono::steady_clock::now() + kSpinTime;
  do {
    for (int i = 0; i < kPausesPerLook; i++) {
      if (is_done()) return true;
      pause_cpu();
    }
  } while (std::chrono::steady_clock::now() < give_up);
  return is_done();
}

// One worker's contiguous share [begin, end) of `count` items. Sizes differ by at most one.
struct Share {
  long begin;
  long end;
};
inline Share share_of(long count, int worker, int workers) {
  return {count * worker / workers, count * (worker + 1) / workers};
}

}  // namespace tokenmill

// Persistent threads that share one computation at a time; the caller is worker 0.
#pragma once

#include <type_traits>

namespace tokenmill {

// Starts `threads - 1` workers, or as many as the system gives; worker i keeps to cpus[i] (null:
// anywhere the caller may run). The caller is left where it is: it may be a user's own thread. Ends
// the workers that ran before. Must not be called from inside a parallel region. Throws when memory
// runs out, and all stays as it was.
void set_threads(int threads, const int* cpus);
int num_threads();

using Task = void (*)(void* context, int worker, int workers);

// Runs task on all workers and returns when the last one is done. From several threads at once:
// one after the other. From inside a region: alone, as worker 0 of 1. When parts throw, the others
// leave at their next barrier, and the first exception is thrown here.
void run_parallel(Task task, void* context);

// Within a region: returns once all its workers came here. What they wrote before is visible. Throws
// what ends this worker's part when another's has failed.
void barrier();

template <class Function>
void parallel(Function&& function) {
  run_parallel(
      [](void* context, int worker, int workers) {
        (*static_cast<std::remove_reference_t<Function>*>(context))(worker, workers);
      },
      const_cast<void*>(static_cast<const void*>(&function)));
}

// [begin, end) of `count` items for one worker: contiguous, sizes differ by one at most.
struct Share {
  long begin;
  long end;
};
inline Share share_of(long count, int worker, int workers) {
  return {count * worker / workers, count * (worker + 1) / workers};
}

}  // namespace tokenmill

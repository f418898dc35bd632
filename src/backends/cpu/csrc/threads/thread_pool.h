// Persistent threads that share one computation at a time. The calling thread is worker 0.
#pragma once

#include <type_traits>

namespace tokenmill {

// Starts `threads - 1` workers, or as many as the system allows, and ends the earlier workers.
// Worker i is pinned to cpus[i] (null: not pinned). The calling thread is not pinned, because it
// may belong to the user's program. Must not be called within a parallel region. If memory runs
// out, it throws and changes nothing.
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

// One worker's contiguous share [begin, end) of `count` items. Sizes differ by at most one.
struct Share {
  long begin;
  long end;
};
inline Share share_of(long count, int worker, int workers) {
  return {count * worker / workers, count * (worker + 1) / workers};
}

}  // namespace tokenmill

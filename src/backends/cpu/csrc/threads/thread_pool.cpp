#include "threads/thread_pool.h"

#include <pthread.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#ifdef __linux__
#include <sched.h>
#endif

namespace tokenmill {

void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

namespace {

// A counter that threads wait for. A waiting thread first spins. Between steps, or when another
// process uses a worker's core, it sleeps and frees its own core.
class Gate {
 public:
  uint32_t passed() const { return count_.load(std::memory_order_acquire); }

  void open() {
    count_.fetch_add(1, std::memory_order_seq_cst);
    if (sleepers_.load(std::memory_order_seq_cst) == 0) return;
    { std::lock_guard<std::mutex> lock(mutex_); }
    wake_.notify_all();
  }

  // Returns once the counter is no longer `seen`.
  void wait(uint32_t seen) {
    if (spin_until([&] { return passed() != seen; })) return;
    std::unique_lock<std::mutex> lock(mutex_);
    sleepers_.fetch_add(1, std::memory_order_seq_cst);
    wake_.wait(lock, [&] { return count_.load(std::memory_order_seq_cst) != seen; });
    sleepers_.fetch_sub(1, std::memory_order_seq_cst);
  }

 private:
  alignas(64) std::atomic<uint32_t> count_{0};
  std::atomic<int> sleepers_{0};
  std::mutex mutex_;
  std::condition_variable wake_;
};

// Pins the calling thread to one CPU during this object's lifetime (cpu -1: does not pin it). If the
// system refuses, the thread stays unpinned.
class Pinned {
 public:
#ifdef __linux__
  explicit Pinned(int cpu) {
    if (cpu < 0 || sched_getaffinity(0, sizeof(before_), &before_) != 0) return;
    cpu_set_t only;
    CPU_ZERO(&only);
    CPU_SET(cpu, &only);
    is_pinned_ = sched_setaffinity(0, sizeof(only), &only) == 0;
  }
  ~Pinned() {
    if (is_pinned_) sched_setaffinity(0, sizeof(before_), &before_);
  }

 private:
  cpu_set_t before_;
  bool is_pinned_ = false;
#else
  explicit Pinned(int) {}
#endif
};

thread_local bool in_region = false;
thread_local bool is_alone = false;  // in a region within a region

class Pool {
 public:
  Pool(int threads, const int* cpus) {
    if (cpus != nullptr) cpus_.assign(cpus, cpus + threads);
    threads_.reserve(threads - 1);
    try {
      for (int worker = 1; worker < threads; worker++)
        threads_.emplace_back([this, worker] { serve(worker); });
    } catch (const std::exception&) {
      // The system allows no more threads: the pool has those that were started.
    }
    size_ = static_cast<int>(threads_.size()) + 1;
  }

  ~Pool() {
    task_ = nullptr;
    start_.open();
    for (auto& thread : threads_) thread.join();
  }

  int size() const { return size_; }

  void run(Task task, void* context) {
    task_ = task;
    context_ = context;
    has_failed_.store(false, std::memory_order_relaxed);
    error_ = nullptr;
    const Pinned caller(cpu_of(0));
    start_.open();
    run_part(0);
    if (error_ != nullptr) std::rethrow_exception(error_);
  }

  void barrier() {
    arrive();
    if (round_failed_) throw RegionFailed();
  }

 private:
  // Thrown in a barrier to leave a region in which another worker's part has failed.
  struct RegionFailed {};

  // A worker whose part has failed arrives at the next meeting, which may be a barrier or the
  // region's end for the others. The others leave the region at a barrier then, so that no worker
  // waits for the failed one.
  void run_part(int worker) {
    try {
      task_(context_, worker, size_);
    } catch (const RegionFailed&) {
      return;  // all workers have met in the barrier that threw this
    } catch (...) {
      if (!has_failed_.exchange(true)) error_ = std::current_exception();
    }
    arrive();
  }

  void arrive() {
    const uint32_t seen = all_here_.passed();
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == size_) {
      arrived_.store(0, std::memory_order_relaxed);
      // Decided once per meeting, because all workers must see the same value.
      round_failed_ = has_failed_.load(std::memory_order_relaxed);
      all_here_.open();
    } else {
      all_here_.wait(seen);
    }
  }

  void serve(int worker) {
    const Pinned here(cpu_of(worker));
    in_region = true;
    // Each region opens the gate once, and every worker is back here before the next region.
    for (uint32_t seen = 0;; seen++) {
      start_.wait(seen);
      if (task_ == nullptr) return;
      run_part(worker);
    }
  }

  // -1 if the worker is not pinned. A pool of one thread is not: it may run on any free CPU.
  int cpu_of(int worker) const { return cpus_.size() > 1 ? cpus_[worker] : -1; }

  int size_ = 1;
  std::vector<int> cpus_;
  std::vector<std::thread> threads_;
  Task task_ = nullptr;
  void* context_ = nullptr;
  Gate start_;
  Gate all_here_;
  std::atomic<bool> has_failed_{false};
  bool round_failed_ = false;
  std::exception_ptr error_;  // of the first part that failed
  alignas(64) std::atomic<int> arrived_{0};
};

// Sets a flag during its lifetime, which an exception may end.
class Raised {
 public:
  explicit Raised(bool& flag) : flag_(flag), before_(flag) { flag = true; }
  ~Raised() { flag_ = before_; }

 private:
  bool& flag_;
  const bool before_;
};

// Never destroyed: at exit, a destructor would wait for threads that have already ended.
struct Holder {
  std::mutex one_region;
  std::unique_ptr<Pool> pool = std::make_unique<Pool>(1, nullptr);
  std::atomic<int> size{1};  // the pool's size; may be read while the pool runs or is replaced
};
Holder* holder = nullptr;

void start_anew() { holder = new Holder; }

Holder& get_holder() {
  static const bool once = [] {
    start_anew();
    // A forked child has no workers: it computes on one thread until it calls set_threads.
    pthread_atfork(nullptr, nullptr, start_anew);
    return true;
  }();
  (void)once;
  return *holder;
}

}  // namespace

void set_threads(int threads, const int* cpus) {
  Holder& here = get_holder();
  std::lock_guard<std::mutex> lock(here.one_region);
  here.pool = std::make_unique<Pool>(threads, cpus);
  here.size = here.pool->size();
}

int num_threads() { return get_holder().size; }

void run_parallel(Task task, void* context) {
  if (in_region) {
    const Raised alone(is_alone);
    return task(context, 0, 1);
  }
  Holder& here = get_holder();
  std::lock_guard<std::mutex> lock(here.one_region);
  const Raised inside(in_region);
  here.pool->run(task, context);
}

void barrier() {
  if (!is_alone) get_holder().pool->barrier();
}

}  // namespace tokenmill

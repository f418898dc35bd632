#include "threads/thread_pool.h"

#include <pthread.h>

#include <atomic>
#include <chrono>
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
namespace {

void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// A counter that threads wait on. Between the products of one forward pass the next thing comes
// within microseconds, so a waiter first spins: waking a sleeper costs more than a small product.
// It spins for a bounded time only: between steps, or when another process holds a worker's core,
// it sleeps, and gives its own core away.
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
    if (spin(seen)) return;
    std::unique_lock<std::mutex> lock(mutex_);
    sleepers_.fetch_add(1, std::memory_order_seq_cst);
    wake_.wait(lock, [&] { return count_.load(std::memory_order_seq_cst) != seen; });
    sleepers_.fetch_sub(1, std::memory_order_seq_cst);
  }

 private:
  static constexpr auto kSpinTime = std::chrono::microseconds(40);
  static constexpr int kPausesPerLook = 32;

  bool spin(uint32_t seen) const {
    const auto give_up = std::chrono::steady_clock::now() + kSpinTime;
    do {
      for (int i = 0; i < kPausesPerLook; i++) {
        if (passed() != seen) return true;
        pause_cpu();
      }
    } while (std::chrono::steady_clock::now() < give_up);
    return passed() != seen;
  }

  alignas(64) std::atomic<uint32_t> count_{0};
  std::atomic<int> sleepers_{0};
  std::mutex mutex_;
  std::condition_variable wake_;
};

// Where that is refused, the thread wanders.
void pin_this_thread(int cpu) {
#ifdef __linux__
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  sched_setaffinity(0, sizeof(set), &set);
#else
  (void)cpu;
#endif
}

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
      // The system gives no more: those that run are the pool.
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
    start_.open();
    run_part(0);
    if (error_ != nullptr) std::rethrow_exception(error_);
  }

  void barrier() {
    arrive();
    if (round_failed_) throw RegionFailed();
  }

 private:
  // Leaves a region of which another worker's part has failed.
  struct RegionFailed {};

  // A worker whose part fails comes to the next meeting, whichever that is to the others: to those
  // in a barrier it is the sign to leave the region, so that nobody waits for a worker that is gone.
  void run_part(int worker) {
    try {
      task_(context_, worker, size_);
    } catch (const RegionFailed&) {
      return;  // all met in the barrier that threw this
    } catch (...) {
      if (!has_failed_.exchange(true)) error_ = std::current_exception();
    }
    arrive();
  }

  void arrive() {
    const uint32_t seen = all_here_.passed();
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == size_) {
      arrived_.store(0, std::memory_order_relaxed);
      // Decided once per meeting: all workers must see the same.
      round_failed_ = has_failed_.load(std::memory_order_relaxed);
      all_here_.open();
    } else {
      all_here_.wait(seen);
    }
  }

  void serve(int worker) {
    if (!cpus_.empty()) pin_this_thread(cpus_[worker]);
    in_region = true;
    // Every region has exactly one opening, and a worker is back before the next one.
    for (uint32_t seen = 0;; seen++) {
      start_.wait(seen);
      if (task_ == nullptr) return;
      run_part(worker);
    }
  }

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

// Sets a flag as long as it lives, also when an exception ends the scope.
class Raised {
 public:
  explicit Raised(bool& flag) : flag_(flag), before_(flag) { flag = true; }
  ~Raised() { flag_ = before_; }

 private:
  bool& flag_;
  const bool before_;
};

// Leaked on purpose: at exit no destructor must wait for threads that are already gone.
struct Holder {
  std::mutex one_region;
  std::unique_ptr<Pool> pool = std::make_unique<Pool>(1, nullptr);
  std::atomic<int> size{1};  // the pool's, readable while a region runs or the pool is exchanged
};
Holder* holder = nullptr;

void start_anew() { holder = new Holder; }

Holder& get_holder() {
  static const bool once = [] {
    start_anew();
    // A forked child has none of the threads: it goes on alone until it calls set_threads.
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

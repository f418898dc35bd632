// Runs CUDA kernels as C++: the threads of a block are fibers that take turns where threads wait
// for each other. What the tensor cores and the copies to shared memory do is written out from the
// PTX manual. Stricter than a GPU, so that mistakes show: shared memory starts as NaN, a copy's
// target is NaN until its thread waited for it, and every address is checked.
#pragma once

#include <csetjmp>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include <ucontext.h>

#define __device__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define SHARED_MEMORY(name) unsigned char* const name = tokenmill::emulator::block->shared()
#define threadIdx (tokenmill::emulator::fiber->thread)
#define blockIdx (tokenmill::emulator::block->index)
#define gridDim (tokenmill::emulator::block->grid)

struct alignas(8) uint2 {
  unsigned x, y;
};
struct uint3 {
  unsigned x, y, z;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};

namespace tokenmill {

using Half = _Float16;

struct BFloat16 {
  uint16_t bits;
  BFloat16() = default;
  explicit BFloat16(float value) {
    uint32_t all;
    std::memcpy(&all, &value, 4);
    const uint32_t rounded = (all + 0x7fff + (all >> 16 & 1)) >> 16;
    bits = value == value ? rounded : 0x7fff;
  }
  explicit operator float() const {
    const uint32_t all = uint32_t(bits) << 16;
    float value;
    std::memcpy(&value, &all, 4);
    return value;
  }
};

inline float __uint_as_float(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}
inline uint32_t __float_as_uint(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return bits;
}

// Each half byte of the selector says which of eight bytes goes there.
inline uint32_t __byte_perm(uint32_t low, uint32_t high, uint32_t selector) {
  const uint64_t bytes = uint64_t(high) << 32 | low;
  uint32_t chosen = 0;
  for (int i = 0; i < 4; ++i)
    chosen |= uint32_t(bytes >> (selector >> 4 * i & 7) * 8 & 0xff) << 8 * i;
  return chosen;
}

inline int min(int a, int b) { return a < b ? a : b; }
inline int max(int a, int b) { return a > b ? a : b; }

namespace emulator {

constexpr size_t kStackBytes = 64 << 10;
constexpr size_t kGuardBytes = 4096;

struct Copy {
  void* to;
  const void* from;  // null: zeros
};

// Where fibers wait for each other; the last one does what is to be done for all.
struct Meeting {
  std::vector<void*> arguments;
  uint64_t generation = 0;
};

struct Fiber {
  ucontext_t start;
  jmp_buf resume;
  uint3 thread{};
  bool has_started = false;
  bool is_done = false;
  const Meeting* waits_at = nullptr;
  uint64_t generation = 0;  // of the meeting, when it began to wait
  std::vector<Copy> open_copies;
  std::deque<std::vector<Copy>> copies;
  std::unique_ptr<char[]> stack{new char[kStackBytes]};

  bool waits() const { return waits_at && waits_at->generation == generation; }
};

struct Block {
  uint3 index{};
  uint3 grid{};
  std::vector<Fiber*> fibers;
  std::vector<Meeting> warps;
  Meeting all;
  std::vector<unsigned char> memory;
  size_t shared_bytes = 0;
  std::string error;
  void (*body)(void*) = nullptr;
  void* argument = nullptr;

  unsigned char* shared() {
    return reinterpret_cast<unsigned char*>((uintptr_t(memory.data()) + 127) / 128 * 128);
  }
  bool holds(const void* pointer, size_t bytes) {
    const auto* p = static_cast<const unsigned char*>(pointer);
    return p >= shared() && p + bytes <= shared() + shared_bytes;
  }
};

inline thread_local Block* block = nullptr;
inline thread_local Fiber* fiber = nullptr;
inline thread_local jmp_buf scheduler;

inline void yield() {
  if (_setjmp(fiber->resume) == 0) _longjmp(scheduler, 1);
}

[[noreturn]] inline void fail(const char* what) {
  if (block->error.empty()) block->error = what;
  for (;;) yield();
}

inline void check(bool holds, const char* what) {
  if (!holds) fail(what);
}

// `run` gets the arguments of all `size` threads, in order.
inline void meet(Meeting& meeting, size_t size, size_t place, void* argument,
                 void (*run)(void** arguments)) {
  if (meeting.arguments.empty()) meeting.arguments.assign(size + 1, nullptr);
  check(meeting.arguments[place] == nullptr, "a thread came to a meeting twice");
  meeting.arguments[place] = argument;
  size_t& arrived = reinterpret_cast<size_t&>(meeting.arguments[size]);
  if (++arrived == size) {
    run(meeting.arguments.data());
    meeting.arguments.clear();
    ++meeting.generation;
    return;
  }
  fiber->waits_at = &meeting;
  fiber->generation = meeting.generation;
  yield();
}

inline void meet_warp(void* argument, void (*run)(void** arguments)) {
  const unsigned thread = fiber->thread.x;
  meet(block->warps[thread / 32], 32, thread % 32, argument, run);
}

inline void enter() {
  block->body(block->argument);
  if (!fiber->copies.empty() || !fiber->open_copies.empty())
    block->error = "a thread ended before its copies";
  fiber->is_done = true;
  yield();
}

inline void resume(Fiber& next) {
  fiber = &next;
  if (_setjmp(scheduler) != 0) return;
  if (next.has_started) _longjmp(next.resume, 1);
  next.has_started = true;
  setcontext(&next.start);
}

inline void prepare(Fiber& next, unsigned thread) {
  next.thread = {thread, 0, 0};
  next.has_started = next.is_done = false;
  next.waits_at = nullptr;
  next.open_copies.clear();
  next.copies.clear();
  getcontext(&next.start);
  next.start.uc_stack.ss_sp = next.stack.get();
  next.start.uc_stack.ss_size = kStackBytes;
  next.start.uc_link = nullptr;
  makecontext(&next.start, enter, 0);
}

inline uint64_t progress() {
  uint64_t total = block->all.generation;
  for (const Meeting& warp : block->warps) total += warp.generation;
  for (const auto& one : block->fibers) total += one->is_done;
  return total;
}

// Runs a warp until all its threads wait for others, or are done. Returns how many are.
inline size_t run_warp(size_t warp, bool in_reverse) {
  for (;;) {
    size_t done = 0, resumed = 0;
    for (size_t i = 0; i < 32; ++i) {
      Fiber& next = *block->fibers[warp * 32 + (in_reverse ? 31 - i : i)];
      if (!next.is_done && !next.waits() && block->error.empty()) {
        resume(next);
        ++resumed;
      }
      done += next.is_done;
    }
    if (resumed == 0) return done;
  }
}

// Runs the block to its end: each warp as far as it gets, so that one that should have waited for
// the others is far ahead of them. Every other block has its threads in reverse order.
inline void run_block(bool in_reverse) {
  const size_t threads = block->fibers.size();
  for (size_t i = 0; i < threads; ++i) prepare(*block->fibers[i], unsigned(i));
  block->all = {};
  block->warps.assign(threads / 32, {});
  std::memset(block->memory.data(), 0xff, block->memory.size());
  for (uint64_t before = ~0ull, now = progress(); block->error.empty(); before = now) {
    size_t done = 0;
    for (size_t i = 0; i < threads / 32; ++i)
      done += run_warp(in_reverse ? threads / 32 - 1 - i : i, in_reverse);
    if (done == threads) break;
    now = progress();
    if (now == before && block->error.empty()) block->error = "threads wait for each other in vain";
  }
  for (size_t i = 0; i < kGuardBytes; ++i)
    if (block->shared()[block->shared_bytes + i] != 0xff)
      block->error = "a thread wrote past the end of shared memory";
}

}  // namespace emulator

inline void __syncthreads() {
  static char nothing;
  emulator::meet(emulator::block->all, emulator::block->fibers.size(), emulator::fiber->thread.x,
                 &nothing, [](void**) {});
}

inline void __syncwarp() {
  static char nothing;
  emulator::meet_warp(&nothing, [](void**) {});
}

template <typename T>
T __shfl_sync(unsigned, T value, int from) {
  struct Argument {
    T value;
    T result;
    int from;
  } mine{value, value, from};
  emulator::meet_warp(&mine, [](void** arguments) {
    Argument** lanes = reinterpret_cast<Argument**>(arguments);
    for (int i = 0; i < 32; ++i) lanes[i]->result = lanes[lanes[i]->from % 32]->value;
  });
  return mine.result;
}

template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int distance) {
  return __shfl_sync(mask, value, int(threadIdx.x % 32) ^ distance);
}

template <typename T>
float element_of(uint32_t pair, int index) {
  const uint16_t bits = uint16_t(pair >> 16 * index);
  T value;
  std::memcpy(&value, &bits, 2);
  return float(value);
}

template <typename T>
uint32_t pack(float first, float second) {
  const T pair[2] = {T(first), T(second)};
  uint32_t bits;
  std::memcpy(&bits, pair, 4);
  return bits;
}

inline uint32_t multiply_halves(uint32_t a, uint32_t b) {
  return pack<Half>(element_of<Half>(a, 0) * element_of<Half>(b, 0),
                    element_of<Half>(a, 1) * element_of<Half>(b, 1));
}

inline uint32_t mask_of_greater(uint32_t a, uint32_t b) {
  return (element_of<Half>(a, 0) > element_of<Half>(b, 0) ? 0xffff : 0) |
         (element_of<Half>(a, 1) > element_of<Half>(b, 1) ? 0xffff0000u : 0);
}

inline uint32_t bfloat16s_of(uint32_t halves) {
  return pack<BFloat16>(element_of<Half>(halves, 0), element_of<Half>(halves, 1));
}

template <typename T>
T from_float(float value) {
  return T(value);
}

template <typename T>
void multiply_accumulate(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  struct Argument {
    float* c;
    const uint32_t* a;
    uint32_t b[2];
  } mine{c, a, {b0, b1}};
  emulator::meet_warp(&mine, [](void** arguments) {
    float a[16][16], b[16][8];
    for (int lane = 0; lane < 32; ++lane) {
      const Argument& from = *static_cast<Argument*>(arguments[lane]);
      const int group = lane / 4, pair = lane % 4 * 2;
      for (int i = 0; i < 2; ++i) {
        a[group][pair + i] = element_of<T>(from.a[0], i);
        a[group + 8][pair + i] = element_of<T>(from.a[1], i);
        a[group][pair + 8 + i] = element_of<T>(from.a[2], i);
        a[group + 8][pair + 8 + i] = element_of<T>(from.a[3], i);
        b[pair + i][group] = element_of<T>(from.b[0], i);
        b[pair + 8 + i][group] = element_of<T>(from.b[1], i);
      }
    }
    float product[16][8] = {};
    for (int row = 0; row < 16; ++row)
      for (int k = 0; k < 16; ++k)
        for (int column = 0; column < 8; ++column) product[row][column] += a[row][k] * b[k][column];
    for (int lane = 0; lane < 32; ++lane) {
      float* c = static_cast<Argument*>(arguments[lane])->c;
      for (int i = 0; i < 4; ++i) c[i] += product[lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2];
    }
  });
}

template <bool IsTransposed>
void load_four_matrices(uint32_t (&to)[4], const void* row) {
  emulator::check(emulator::block->holds(row, 16), "ldmatrix outside of shared memory");
  emulator::check(uintptr_t(row) % 16 == 0, "ldmatrix of a row that is not aligned");
  struct Argument {
    uint32_t* to;
    const uint16_t* row;
  } mine{to, static_cast<const uint16_t*>(row)};
  emulator::meet_warp(&mine, [](void** arguments) {
    const auto row_of = [&](int row) { return static_cast<Argument*>(arguments[row])->row; };
    for (int lane = 0; lane < 32; ++lane)
      for (int matrix = 0; matrix < 4; ++matrix) {
        const int line = lane / 4, pair = lane % 4 * 2, first = matrix * 8;
        const uint16_t low = IsTransposed ? row_of(first + pair)[line] : row_of(first + line)[pair];
        const uint16_t high =
            IsTransposed ? row_of(first + pair + 1)[line] : row_of(first + line)[pair + 1];
        static_cast<Argument*>(arguments[lane])->to[matrix] = low | uint32_t(high) << 16;
      }
  });
}

inline void load_matrices(uint32_t (&to)[4], const void* row) {
  load_four_matrices<false>(to, row);
}

inline void load_matrices_transposed(uint32_t (&to)[4], const void* row) {
  load_four_matrices<true>(to, row);
}

inline void start_copy(void* shared, const void* global, bool is_wanted) {
  emulator::check(emulator::block->holds(shared, 16), "a copy to outside of shared memory");
  emulator::check((uintptr_t(shared) | uintptr_t(global)) % 16 == 0, "a copy that is not aligned");
  std::memset(shared, 0xff, 16);
  emulator::fiber->open_copies.push_back({shared, is_wanted ? global : nullptr});
}

inline void commit_copies() {
  emulator::fiber->copies.push_back(std::move(emulator::fiber->open_copies));
  emulator::fiber->open_copies.clear();
}

template <int N>
void wait_for_copies() {
  auto& copies = emulator::fiber->copies;
  for (; copies.size() > N; copies.pop_front())
    for (const emulator::Copy& copy : copies.front()) {
      if (copy.from) std::memcpy(copy.to, copy.from, 16);
      else std::memset(copy.to, 0, 16);
    }
}

// Returns a message, or null when all went well.
template <typename Call>
const char* launch(void (*kernel)(Call), Grid grid, int threads, int shared_bytes,
                   const Call& call, void*) {
  static thread_local std::string error;
  static thread_local std::vector<std::unique_ptr<emulator::Fiber>> fibers;  // kept: big stacks
  struct Work {
    void (*kernel)(Call);
    Call call;
  } work{kernel, call};
  emulator::Block block;
  block.grid = {unsigned(grid.x), unsigned(grid.y), unsigned(grid.z)};
  while (int(fibers.size()) < threads) fibers.push_back(std::make_unique<emulator::Fiber>());
  for (int i = 0; i < threads; ++i) block.fibers.push_back(fibers[i].get());
  block.memory.resize(shared_bytes + 128 + emulator::kGuardBytes);
  block.shared_bytes = shared_bytes;
  block.argument = &work;
  block.body = [](void* work) {
    static_cast<Work*>(work)->kernel(static_cast<Work*>(work)->call);
  };
  emulator::block = &block;
  for (unsigned z = 0; z < block.grid.z; ++z)
    for (unsigned y = 0; y < block.grid.y; ++y)
      for (unsigned x = 0; x < block.grid.x && block.error.empty(); ++x) {
        block.index = {x, y, z};
        emulator::run_block((x + y + z) % 2 == 1);
      }
  error = block.error;
  return error.empty() ? nullptr : error.c_str();
}

}  // namespace tokenmill

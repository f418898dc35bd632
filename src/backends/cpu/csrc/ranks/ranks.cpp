// Counters in shared memory, on which ranks wait for each other.
#include "ranks/ranks.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <climits>
#include <cstring>

#include "threads/thread_pool.h"
#include "vectors/elements.h"

#ifdef __linux__
#include <linux/futex.h>
#include <sys/syscall.h>
#endif
#include <unistd.h>

namespace tokenmill {
namespace {

// The counters of one rank, apart from those of others: two cache lines, because CPUs fetch pairs.
struct alignas(128) Counters {
  std::atomic<uint32_t> arrived;   // meetings at which the rank has arrived, modulo 2^32
  std::atomic<uint32_t> sleepers;  // threads of other ranks that sleep until it arrives
};
// Other processes see the same numbers only if no lock of this process is involved.
static_assert(std::atomic<uint32_t>::is_always_lock_free);

Counters& counters_of(const Ranks& ranks, int rank) {
  return static_cast<Counters*>(ranks.memory)[rank];
}

// Sleeps while the counter is `seen`. May return early.
void sleep_while(std::atomic<uint32_t>& counter, uint32_t seen) {
#ifdef __linux__
  syscall(SYS_futex, &counter, FUTEX_WAIT, seen, nullptr, nullptr, 0);
#else
  (void)counter, (void)seen;
  usleep(50);
#endif
}

void wake_all(std::atomic<uint32_t>& counter) {
#ifdef __linux__
  syscall(SYS_futex, &counter, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
#else
  (void)counter;
#endif
}

// Sequentially consistent, because either the rank sees the sleeper, or the sleeper sees the rank.
void arrive(Counters& own, uint32_t meeting) {
  own.arrived.store(meeting, std::memory_order_seq_cst);
  if (own.sleepers.load(std::memory_order_seq_cst) != 0) wake_all(own.arrived);
}

// Spins first, because ranks with cores of their own arrive at nearly the same time. Then it sleeps:
// ranks that share a core would take it from each other.
void wait_for(Counters& other, uint32_t meeting) {
  const auto is_here = [&](std::memory_order order) {
    return static_cast<int32_t>(other.arrived.load(order) - meeting) >= 0;
  };
  if (spin_until([&] { return is_here(std::memory_order_acquire); })) return;
  other.sleepers.fetch_add(1, std::memory_order_seq_cst);
  while (!is_here(std::memory_order_seq_cst)) sleep_while(other.arrived, meeting - 1);
  other.sleepers.fetch_sub(1, std::memory_order_seq_cst);
}

template <class Out>
void add_slots_to(const Meetings& meetings, int64_t begin, int64_t end, Out* out, bool add_to_out) {
  for_registers(end - begin, [&](auto load, auto store) {
    Floats sum = load(meetings.slot_of(0) + begin);
    for (int rank = 1; rank < meetings.size(); rank++) sum += load(meetings.slot_of(rank) + begin);
    store(out + begin, add_to_out ? sum + load(out + begin) : sum);
  });
}

}  // namespace

int64_t shared_bytes(const Ranks& ranks) {
  return ranks.size * (sizeof(Counters) + 2 * ranks.slot_floats * sizeof(float));
}

// Only this rank's first worker changes the rank's counter, and only in a meeting.
Meetings::Meetings(const Ranks& ranks, int worker)
    : ranks_(ranks),
      worker_(worker),
      round_(counters_of(ranks, ranks.rank).arrived.load(std::memory_order_relaxed)) {}

float* Meetings::slot_of(int rank) const {
  auto* first = reinterpret_cast<float*>(&counters_of(ranks_, ranks_.size));
  return first + (2 * rank + round_ % 2) * ranks_.slot_floats;
}

void Meetings::meet() {
  if (worker_ == 0) arrive(counters_of(ranks_, ranks_.rank), round_ + 1);
  for (int rank = 0; rank < ranks_.size; rank++)
    if (rank != ranks_.rank) wait_for(counters_of(ranks_, rank), round_ + 1);
}

void add_slots(const Meetings& meetings, int64_t begin, int64_t end, void* out, Element out_type,
               bool add_to_out) {
  if (out_type == Element::kF32) {
    add_slots_to(meetings, begin, end, static_cast<float*>(out), add_to_out);
  } else {
    add_slots_to(meetings, begin, end, static_cast<uint16_t*>(out), add_to_out);
  }
}

void sum_over_ranks(const Ranks& ranks, float* data, int64_t count) {
  parallel([&](int worker, int workers) {
    Meetings meetings(ranks, worker);
    for (int64_t first = 0; first < count; first += ranks.slot_floats) {
      const Share mine = share_of(std::min(count - first, ranks.slot_floats), worker, workers);
      std::memcpy(meetings.own_slot() + mine.begin, data + first + mine.begin,
                  (mine.end - mine.begin) * sizeof(float));
      barrier();
      meetings.meet();
      add_slots(meetings, mine.begin, mine.end, data + first, Element::kF32, false);
      meetings.end_round();
    }
  });
}

}  // namespace tokenmill

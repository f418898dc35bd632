#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "self_test/checks.h"

namespace tokenmill {
namespace {

constexpr int kRanks = 3, kSums = 200;
constexpr int64_t kSlotFloats = 64, kCount = 150;  // two whole slots and a part

// Numbers whose sum depends on the order of the additions.
float part_of(int rank, int64_t sum, int64_t i) {
  return (rank == 1 ? 1e8f : 1.0f) * Random(1 + rank + kRanks * (sum + kSums * i)).number();
}

// One rank's process. Returns whether all its sums are right.
bool sums_are_right(const Library& library, void* memory, int rank) {
  const Ranks ranks = {rank, kRanks, memory, kSlotFloats};
  if (library.set_threads(1 + rank % 2, nullptr) != Status::kDone) return false;
  for (int64_t sum = 0; sum < kSums; sum++) {
    float data[kCount];
    for (int64_t i = 0; i < kCount; i++) data[i] = part_of(rank, sum, i);
    if (library.sum_over_ranks(&ranks, data, kCount) != Status::kDone) return false;
    for (int64_t i = 0; i < kCount; i++)
      if (data[i] != part_of(0, sum, i) + part_of(1, sum, i) + part_of(2, sum, i)) return false;
    if (sum % 50 == rank) usleep(200);  // the others have to sleep, too
  }
  return true;
}

}  // namespace

// Checks sums over three processes, some with several threads, through shared memory.
void check_ranks(const Library& library, Report& report) {
  report.begin("sums over ranks");
  const Ranks one = {0, kRanks, nullptr, kSlotFloats};
  void* memory = mmap(nullptr, library.shared_bytes(&one), PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  report.expect(memory != MAP_FAILED, "no shared memory");
  if (memory == MAP_FAILED) return;
  pid_t processes[kRanks];
  for (int rank = 0; rank < kRanks; rank++) {
    processes[rank] = fork();
    if (processes[rank] != 0) continue;
    alarm(60);  // if one fails, the others wait in vain
    _exit(sums_are_right(library, memory, rank) ? 0 : 1);
  }
  for (int rank = 0; rank < kRanks; rank++) {
    int status = 1;
    const bool ran = processes[rank] > 0 && waitpid(processes[rank], &status, 0) > 0;
    report.expect(ran && status == 0, "rank ", rank, " ended with status ", status);
  }
}

}  // namespace tokenmill

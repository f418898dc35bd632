// Processes that compute one model together. Each has a part of the weights. They add up their
// partial sums through memory that all of them share.
#pragma once

#include <cstdint>

#include "linear/linear.h"

namespace tokenmill {

// One process's view of the group. structures.py has the same layout.
struct Ranks {
  int32_t rank;
  int32_t size;
  void* memory;         // shared_bytes(), all zero before the first use
  int64_t slot_floats;  // size of a slot: a multiple of 16
};

// Size of the shared memory: a line of counters and two slots per rank.
int64_t shared_bytes(const Ranks& ranks);

// One worker's view of the meetings of all ranks within a parallel region. In a round, the workers of
// every rank write parts of the rank's own slot, then meet, then read all slots. The next round uses
// the other slots, so that a rank that is ahead does not overwrite what others still read.
class Meetings {
 public:
  Meetings(const Ranks& ranks, int worker);

  int size() const { return ranks_.size; }
  int64_t slot_floats() const { return ranks_.slot_floats; }
  // The slot of this round: to write, the own one.
  float* own_slot() const { return slot_of(ranks_.rank); }
  float* slot_of(int rank) const;
  // Returns once all ranks are here; their slots may be read then. All workers of this rank have
  // met in a barrier before. If another rank never comes, this waits until the process is killed.
  void meet();
  // Ends the round, after the slots were read.
  void end_round() { round_++; }

 private:
  const Ranks& ranks_;
  const int worker_;
  uint32_t round_;  // rounds before this one, modulo 2^32
};

// out[i] (+)= the sum over all ranks of their slots' numbers [begin, end), in the order of the ranks.
// So all ranks get the same bits. `out` has the address of number 0.
void add_slots(const Meetings& meetings, int64_t begin, int64_t end, void* out, Element out_type,
               bool add_to_out);

// Replaces `count` numbers with their sums over all ranks, as one parallel region.
void sum_over_ranks(const Ranks& ranks, float* data, int64_t count);

}  // namespace tokenmill

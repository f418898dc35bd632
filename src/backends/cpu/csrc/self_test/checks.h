// The checks of a library with kernels. They compare its results, through its C interface, with
// plain loops.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <sstream>
#include <string>
#include <vector>

#include "abi/c_abi.h"
#include "abi/structures.h"
#include "attention/attention.h"
#include "decoder/decoder.h"
#include "elementwise/elementwise.h"
#include "linear/packed/packing.h"
#include "sampling/logits.h"
#include "sampling/sampling.h"

namespace tokenmill {

// The library's functions: those of abi/api.cpp.
struct Library {
  const char* (*instruction_set)();
  const FieldLayout* (*structures)();
  Status (*set_threads)(int, const int*);
  int (*num_threads)();
  int64_t (*packed_bytes)(const PackedLinear*);
  Status (*pack)(const PackedLinear*, const WeightRows*, uint8_t*);
  Status (*unpack)(const PackedLinear*, float*);
  Status (*look_up)(const PackedLinear*, const int64_t*, int64_t, void*, Element);
  Status (*linear)(const LinearCall*);
  AttentionPlan* (*attention_plan_new)();
  void (*attention_plan_free)(AttentionPlan*);
  Status (*attention_plan)(AttentionPlan*, const AttentionSpec*, const AttentionBatch*);
  Status (*write_and_attend)(const RotateAndWriteCall*, int64_t, const AttentionCall*);
  Status (*run_decoder)(const DecoderModel*, const DecoderStep*);
  int64_t (*shared_bytes)(const Ranks*);
  Status (*sum_over_ranks)(const Ranks*, float*, int64_t);
  Status (*read_logits)(const LogitsCall*, int64_t);
  Status (*mask_logits)(const MaskCall*, int64_t);
  Status (*draw)(const DrawCall*);
  Status (*try_drafts)(const TrialCall*);
};

// Counts failures, and prints the first failure of each check.
class Report {
 public:
  // Starts a check: the next comparisons belong to it.
  void begin(const std::string& check);
  // On failure, the parts of the message are joined. They say what was expected, and what is there.
  template <class... Parts>
  void expect(bool is_right, const Parts&... message) {
    if (is_right) return;
    std::ostringstream text;
    text.precision(9);
    (text << ... << message);
    fail(text.str());
  }
  // Expects that a function of the library succeeds.
  void expect_done(Status status, const char* function) {
    expect(status == Status::kDone, function, " returned status ", static_cast<int>(status),
           ", expected 0 (done)");
  }
  // Expects a number of the matrix `name` within `bound` of `wanted`. NaN always fails.
  void expect_near(double found, double wanted, double bound, const char* name, int64_t row,
                   int64_t column) {
    expect(std::fabs(found - wanted) <= bound, name, "[", row, ", ", column, "] is ", found,
           ", expected ", wanted, " with an error of at most ", bound);
  }
  int failures() const { return failures_; }

 private:
  void fail(const std::string& message);

  std::string check_;
  bool has_failed_ = false;
  int failures_ = 0;
};

// Random numbers that are the same in every run.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15u + 1) {}
  uint64_t bits() {
    state_ ^= state_ << 13;
    state_ ^= state_ >> 7;
    state_ ^= state_ << 17;
    return state_;
  }
  // In [-1, 1).
  float number() { return static_cast<float>(static_cast<int64_t>(bits()) * 0x1p-63); }

 private:
  uint64_t state_;
};

inline float from_bf16(uint16_t half) {
  const uint32_t bits = static_cast<uint32_t>(half) << 16;
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}
inline uint16_t to_bf16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

// An array of float or bfloat16 numbers, as the library reads it.
class Numbers {
 public:
  Numbers(Element element, int64_t count) : element_(element), bytes_(count * size()) {}
  int64_t size() const { return element_ == Element::kBF16 ? 2 : 4; }
  void* at(int64_t place) { return bytes_.data() + place * size(); }
  float get(int64_t place) const {
    const uint8_t* from = bytes_.data() + place * size();
    if (element_ == Element::kBF16) {
      uint16_t half;
      std::memcpy(&half, from, 2);
      return from_bf16(half);
    }
    float value;
    std::memcpy(&value, from, 4);
    return value;
  }
  void set(int64_t place, float value) {
    const uint16_t half = to_bf16(value);
    std::memcpy(at(place), element_ == Element::kBF16 ? static_cast<const void*>(&half) : &value,
                size());
  }
  void fill(Random& random) {
    const auto count = static_cast<int64_t>(bytes_.size()) / size();
    for (int64_t i = 0; i < count; i++) set(i, random.number());
  }

 private:
  Element element_;
  std::vector<uint8_t> bytes_;
};

void check_threads(const Library& library, Report& report);
void check_linear(const Library& library, Report& report);
void check_attention(const Library& library, Report& report);
void check_decoder(const Library& library, Report& report);
void check_experts(const Library& library, Report& report);
void check_decoder_layers(const Library& library, Report& report);
void check_ranks(const Library& library, Report& report);
void check_sampling(const Library& library, Report& report);

}  // namespace tokenmill

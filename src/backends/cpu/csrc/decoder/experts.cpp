#include "decoder/experts.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "elementwise/elementwise.h"
#include "threads/scratch.h"
#include "threads/thread_pool.h"

namespace tokenmill {
namespace {

constexpr int64_t kAlignment = 64;

thread_local Scratch experts_scratch;

// Writes the indices of the `count` largest logits, in ascending order. Of equal ones, the first.
void choose_largest(const float* logits, int64_t size, int64_t count, int32_t* chosen) {
  for (int64_t i = 0; i < size; i++) {
    int64_t place = std::min(i, count);
    while (place > 0 && logits[i] > logits[chosen[place - 1]]) {
      if (place < count) chosen[place] = chosen[place - 1];
      place--;
    }
    if (place < count) chosen[place] = static_cast<int32_t>(i);
  }
  std::sort(chosen, chosen + count);
}

// The shares: a softmax over the chosen logits if they are normalized, else over all logits.
void compute_shares(const float* logits, const ExpertsSpec& spec, const int32_t* chosen,
                    float* shares) {
  const float largest = *std::max_element(logits, logits + spec.num_experts);
  double sum = 0;
  for (int64_t i = 0; i < spec.num_active; i++)
    sum += shares[i] = std::exp(logits[chosen[i]] - largest);
  if (!spec.normalizes_shares) {
    sum = 0;
    for (int64_t i = 0; i < spec.num_experts; i++) sum += std::exp(logits[i] - largest);
  }
  for (int64_t i = 0; i < spec.num_active; i++)
    shares[i] = static_cast<float>(shares[i] / sum);
}

}  // namespace

ExpertsMemory take_experts_memory(const ExpertsSpec& spec, Element element, int64_t tokens,
                                  int64_t hidden_size) {
  const int64_t pairs = tokens * spec.num_active, bytes = size_of(element);
  const int64_t sizes[] = {tokens * spec.num_experts * 4,
                           pairs * 4,
                           pairs * 4,
                           pairs * hidden_size * bytes,
                           spec.gate_limit > 0 ? pairs * spec.intermediate_size * 2 * bytes : 0,
                           pairs * spec.intermediate_size * bytes};
  int64_t total = 0, starts[6];
  for (int i = 0; i < 6; i++) {
    starts[i] = total;
    total += (sizes[i] + kAlignment - 1) / kAlignment * kAlignment;
  }
  auto* at = static_cast<uint8_t*>(experts_scratch.bytes(total));
  ExpertsMemory memory;
  memory.logits = reinterpret_cast<float*>(at + starts[0]);
  memory.chosen = reinterpret_cast<int32_t*>(at + starts[1]);
  memory.shares = reinterpret_cast<float*>(at + starts[2]);
  memory.element = element;
  memory.inputs = at + starts[3];
  memory.both = sizes[4] > 0 ? at + starts[4] : nullptr;
  memory.inner = at + starts[5];
  return memory;
}

ExpertsPart::ExpertsPart(const ExpertsSpec& spec, const ExpertsMemory& memory, int64_t tokens,
                         int64_t hidden_size, int worker, int workers)
    : spec_(spec),
      memory_(memory),
      tokens_(tokens),
      hidden_size_(hidden_size),
      element_bytes_(size_of(memory.element)),
      worker_(worker),
      workers_(workers),
      starts_(spec.num_experts + 1),
      places_(tokens * spec.num_active) {}

void ExpertsPart::route(const PackedLinear* router, const float* bias, const void* x) {
  LinearCall call = {};
  call.weights = router;
  call.x = x;
  call.x_stride = hidden_size_;
  call.rows = tokens_;
  call.bias = bias;
  call.out = memory_.logits;
  call.out_stride = spec_.num_experts;
  call.out_type = Element::kF32;
  linear_part(call, worker_, workers_);
}

void ExpertsPart::choose() {
  const Share mine = share_of(tokens_, worker_, workers_);
  for (int64_t token = mine.begin; token < mine.end; token++) {
    const float* logits = memory_.logits + token * spec_.num_experts;
    int32_t* chosen = memory_.chosen + token * spec_.num_active;
    choose_largest(logits, spec_.num_experts, spec_.num_active, chosen);
    compute_shares(logits, spec_, chosen, memory_.shares + token * spec_.num_active);
  }
}

void ExpertsPart::count(int64_t* counters) const {
  for (int64_t i = 0; i < tokens_ * spec_.num_active; i++) counters[memory_.chosen[i]]++;
}

// Every worker sorts all pairs for itself: this takes less time than another barrier.
void ExpertsPart::sort(const Expert* experts) {
  const int64_t pairs = tokens_ * spec_.num_active;
  const auto is_here = [&](int64_t pair) { return experts[memory_.chosen[pair]].down != nullptr; };
  std::fill(starts_.begin(), starts_.end(), 0);
  for (int64_t i = 0; i < pairs; i++)
    if (is_here(i)) starts_[memory_.chosen[i] + 1]++;
  for (int64_t i = 0; i < spec_.num_experts; i++) starts_[i + 1] += starts_[i];
  // Afterwards, each start is that of the next expert.
  for (int64_t i = 0; i < pairs; i++) places_[i] = is_here(i) ? starts_[memory_.chosen[i]]++ : -1;
  std::copy_backward(starts_.begin(), starts_.end() - 1, starts_.end());
  starts_[0] = 0;
}

void ExpertsPart::gather(const Expert* experts, const void* x) {
  sort(experts);
  const auto* rows = static_cast<const uint8_t*>(x);
  const int64_t row_bytes = hidden_size_ * element_bytes_;
  const Share mine = share_of(tokens_, worker_, workers_);
  for (int64_t i = mine.begin * spec_.num_active; i < mine.end * spec_.num_active; i++)
    if (places_[i] >= 0)
      std::memcpy(memory_.inputs + places_[i] * row_bytes, rows + i / spec_.num_active * row_bytes,
                  row_bytes);
}

template <class Product>
void ExpertsPart::for_experts(Product product) const {
  for (int64_t i = 0; i < spec_.num_experts; i++)
    if (starts_[i + 1] > starts_[i]) product(i, starts_[i], starts_[i + 1] - starts_[i]);
}

void ExpertsPart::gate_up(const Expert* experts) {
  const bool has_limit = spec_.gate_limit > 0;
  uint8_t* out = has_limit ? memory_.both : memory_.inner;
  const int64_t columns = (has_limit ? 2 : 1) * spec_.intermediate_size;
  for_experts([&](int64_t expert, int64_t first, int64_t pairs) {
    LinearCall call = {};
    call.weights = experts[expert].gate_up;
    call.x = memory_.inputs + first * hidden_size_ * element_bytes_;
    call.x_stride = hidden_size_;
    call.rows = pairs;
    call.bias = experts[expert].gate_up_bias;
    call.out = out + first * columns * element_bytes_;
    call.out_stride = columns;
    call.out_type = memory_.element;
    linear_part(call, worker_, workers_);
  });
}

void ExpertsPart::apply_gate() {
  const Share mine = share_of(starts_[spec_.num_experts], worker_, workers_);
  const ClampedGateCall call = {memory_.element,         memory_.both,     memory_.inner,
                                spec_.intermediate_size, spec_.gate_limit, spec_.gate_alpha,
                                spec_.is_interleaved != 0};
  clamped_gate(call, mine.begin, mine.end);
}

void ExpertsPart::down(const Expert* experts) {
  for_experts([&](int64_t expert, int64_t first, int64_t pairs) {
    LinearCall call = {};
    call.weights = experts[expert].down;
    call.x = memory_.inner + first * spec_.intermediate_size * element_bytes_;
    call.x_stride = spec_.intermediate_size;
    call.rows = pairs;
    call.bias = experts[expert].down_bias;
    call.out = memory_.inputs + first * hidden_size_ * element_bytes_;
    call.out_stride = hidden_size_;
    call.out_type = memory_.element;
    linear_part(call, worker_, workers_);
  });
}

void ExpertsPart::combine(int64_t first, int64_t count, void* out, Element out_type,
                          bool add) const {
  const Share mine = share_of(count, worker_, workers_);
  const int64_t row_bytes = hidden_size_ * size_of(out_type);
  WeightedRowsCall call = {};
  call.element = memory_.element;
  call.x = memory_.inputs;
  call.count = spec_.num_active;
  call.out_type = out_type;
  call.size = hidden_size_;
  call.add_to_out = add;
  for (int64_t row = mine.begin; row < mine.end; row++) {
    call.rows = places_.data() + (first + row) * spec_.num_active;
    call.weights = memory_.shares + (first + row) * spec_.num_active;
    call.out = static_cast<uint8_t*>(out) + row * row_bytes;
    add_weighted_rows(call);
  }
}

}  // namespace tokenmill

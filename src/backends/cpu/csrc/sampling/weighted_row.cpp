#include "sampling/weighted_row.h"

#include <algorithm>
#include <cfloat>

#include "sampling/selection.h"
#include "threads/scratch.h"

namespace tokenmill {
namespace {

thread_local Scratch weights_scratch, sums_scratch, largest_scratch, values_scratch, bins_scratch;

constexpr double kLog2E = 1.4426950408889634;

// Minimum weights, relative to the likeliest token's, of the tokens that filters collect. The first
// cut nearly always suffices, and few tokens pass it.
constexpr float kCuts[] = {0x1p-7f, 0x1p-14f, 0.0f};

// With this number of values or more, partitioning could take milliseconds.
constexpr int64_t kMany = 1024;

template <class Measure>
float greatest_bound(float* values, int64_t count, double wanted, Measure measure) {
  if (count < kMany) return select_by_partition(values, count, wanted, measure);
  return select_by_digits(values, count, wanted, measure, bins_scratch);
}

struct Tokens {
  int64_t begin;
  int64_t end;
};
Tokens tokens_of(int64_t block, int64_t size) {
  const int64_t begin = block * kWeightsBlock;
  return {begin, std::min(begin + kWeightsBlock, size)};
}

}  // namespace

WeightedRow::WeightedRow(const LogitsRows& rows, const DrawnRow& drawn) {
  const int64_t size = rows.size, blocks = (size + kWeightsBlock - 1) / kWeightsBlock;
  numbers_.size = size;
  numbers_.weights = weights_scratch.floats(size);
  numbers_.sums = static_cast<double*>(sums_scratch.bytes(blocks * sizeof(double)));
  numbers_.largest = largest_scratch.floats(blocks);
  values_ = values_scratch.floats(size);
  const float* logits = rows.logits + drawn.row * size;
  // The inverse of a very small temperature is infinite. With FLT_MAX only the best token has
  // weight.
  const float scale = std::min<double>(kLog2E / drawn.temperature, FLT_MAX);
  weigh_row({logits, logits[rows.best[drawn.row]], scale, numbers_});
  set_total();
  if (drawn.top_k < size || drawn.min_p > 0.0f || drawn.top_p < 1.0) keep_from(bound_of(drawn));
}

int64_t WeightedRow::draw(double number) const {
  double left = number * total_;
  int64_t chosen = 0;
  for (int64_t block = 0; block * kWeightsBlock < numbers_.size; block++) {
    if (!(numbers_.sums[block] > 0.0)) continue;
    chosen = block;
    if (left < numbers_.sums[block]) break;
    left -= numbers_.sums[block];
  }
  // Sums are rounded, so `left` may exceed the block's tokens. The last token with weight is taken
  // then.
  const Tokens tokens = tokens_of(chosen, numbers_.size);
  int64_t found = tokens.begin;
  for (int64_t token = tokens.begin; token < tokens.end; token++) {
    if (!(numbers_.weights[token] > 0.0f)) continue;
    found = token;
    left -= numbers_.weights[token];
    if (left < 0.0) break;
  }
  return found;
}

void WeightedRow::write_probabilities(float* out, int64_t out_size, const int64_t* places) const {
  if (places != nullptr) std::fill(out, out + out_size, 0.0f);
  for (int64_t token = 0; token < numbers_.size; token++)
    out[places == nullptr ? token : places[token]] = probability(token);
}

void WeightedRow::subtract(const float* q, int64_t refused) {
  numbers_.weights[refused] = 0.0f;
  int64_t token = 0;
  while (token < numbers_.size && !(probability(token) > q[token])) token++;
  if (token < numbers_.size) {
    subtract_row({q, scale_, numbers_});
    set_total();
  } else {
    keep_from(0.0f);  // keeps all other tokens and updates the sums
  }
}

float WeightedRow::bound_of(const DrawnRow& drawn) {
  float bound = drawn.min_p;
  if (drawn.top_k < numbers_.size) {
    const auto one = [](float) { return 1.0; };
    const int64_t count = collect(0.0f, drawn.top_k, one);
    bound = std::max(bound, greatest_bound(values_, count, drawn.top_k, one));
  }
  if (drawn.top_p < 1.0) {
    const auto itself = [](float weight) { return static_cast<double>(weight); };
    const double mass = bound > 0.0f ? mass_from(bound) : total_;
    const double wanted = std::max(drawn.top_p * mass, DBL_MIN);
    const int64_t count = collect(bound, wanted, itself);
    bound = std::max(bound, greatest_bound(values_, count, wanted, itself));
  }
  return bound;
}

// Calls body for the weights of all blocks that contain a weight of at least `bound`.
template <class Body>
void WeightedRow::for_each_from(float bound, Body body) const {
  for (int64_t block = 0; block * kWeightsBlock < numbers_.size; block++) {
    if (!(numbers_.largest[block] >= bound)) continue;
    const Tokens tokens = tokens_of(block, numbers_.size);
    for (int64_t token = tokens.begin; token < tokens.end; token++) body(numbers_.weights[token]);
  }
}

double WeightedRow::mass_from(float bound) const {
  double mass = 0.0;
  for_each_from(bound, [&](float weight) { mass += weight >= bound ? weight : 0.0f; });
  return mass;
}

template <class Measure>
int64_t WeightedRow::collect(float least, double wanted, Measure measure) {
  int64_t count = 0;
  for (const float cut : kCuts) {
    const float from = std::max(cut, least);
    double measured = 0.0;
    count = 0;
    for_each_from(from, [&](float weight) {
      const bool is_taken = weight >= from;
      values_[count] = weight;
      count += is_taken;
      measured += is_taken ? measure(weight) : 0.0;
    });
    if (measured >= wanted) break;
  }
  return count;
}

void WeightedRow::keep_from(float bound) {
  float* weights = numbers_.weights;
  for (int64_t block = 0; block * kWeightsBlock < numbers_.size; block++) {
    const Tokens tokens = tokens_of(block, numbers_.size);
    double sum = 0.0;
    if (!(numbers_.largest[block] >= bound)) {
      std::fill(weights + tokens.begin, weights + tokens.end, 0.0f);
    } else {
      for (int64_t token = tokens.begin; token < tokens.end; token++) {
        if (!(weights[token] >= bound)) weights[token] = 0.0f;
        sum += weights[token];
      }
    }
    numbers_.sums[block] = sum;
  }
  set_total();
}

void WeightedRow::set_total() {
  total_ = 0.0;
  for (int64_t block = 0; block * kWeightsBlock < numbers_.size; block++)
    total_ += numbers_.sums[block];
  scale_ = static_cast<float>(1.0 / total_);
}

}  // namespace tokenmill

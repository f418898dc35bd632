// A product with random weights, by the library and by plain loops.
#pragma once

#include "self_test/checks.h"

namespace tokenmill {

using Row = std::vector<double>;

inline double rounded(double x, Element element) {
  return element == Element::kBF16 ? from_bf16(to_bf16(static_cast<float>(x))) : x;
}

inline std::vector<float> random_floats(Random& random, int64_t count, float mean,
                                        float spread) {
  std::vector<float> numbers;
  for (int64_t i = 0; i < count; i++) numbers.push_back(mean + spread * random.number());
  return numbers;
}

// A product with random weights, in float or bfloat16.
class Product {
 public:
  Product(const Library& library, Report& report, Random& random, Element element, int64_t n,
          int64_t k, bool gate_up, Activation activation, float spread = 0.3f)
      : rows_(element, n * k) {
    for (int64_t i = 0; i < n * k; i++) rows_.set(i, spread * random.number());
    const bool is_float = element == Element::kF32;
    packed_.layout = is_float ? Layout::kF32 : Layout::kBF16;
    packed_.n = n;
    packed_.k = k;
    packed_.gate_up = gate_up;
    packed_.activation = activation;
    memory_.resize(library.packed_bytes(&packed_) + 64 + 8192);  // kernels prefetch
    auto* data = memory_.data() + (64 - reinterpret_cast<uintptr_t>(memory_.data()) % 64) % 64;
    packed_.data = data;
    const auto* up = gate_up ? static_cast<const uint8_t*>(rows_.at(n / 2 * k)) : nullptr;
    const WeightRows source = {static_cast<uint8_t*>(rows_.at(0)), up, rows_.size() * k,
                               is_float ? Source::kF32 : Source::kBF16};
    report.expect_done(library.pack(&packed_, &source, data), "tm_pack");
  }

  Product(Product&&) = default;

  const PackedLinear* packed() const { return &packed_; }
  // Multiplies a row of inputs.
  Row of(const Row& x) const {
    Row out(packed_.n);
    for (int64_t i = 0; i < packed_.n * packed_.k; i++)
      out[i / packed_.k] += rows_.get(i) * x[i % packed_.k];
    return out;
  }

 private:
  Numbers rows_;
  PackedLinear packed_ = {};
  std::vector<uint8_t> memory_;
};

}  // namespace tokenmill

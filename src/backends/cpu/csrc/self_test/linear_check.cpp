#include <algorithm>

#include "linear/packed/tables.h"
#include "self_test/checks.h"

namespace tokenmill {
namespace {

const char* const kNames[] = {"float32", "bfloat16", "Q4_0",  "Q4_1", "Q5_0", "Q5_1", "Q8_0",
                              "IQ4_NL",  "MXFP4",    "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS",
                              "Q2_K",    "float16"};

// Offsets in a block of the source's half-precision numbers; -1: none.
const int kHalves[][2] = {{-1, -1}, {-1, -1}, {0, -1},  {0, 2}, {0, -1}, {0, 2},  {0, -1},
                          {0, -1},  {-1, -1}, {108, -1}, {0, 2}, {0, 2},  {208, -1}, {0, -1},
                          {80, 82}, {-1, -1}};

// A half-precision number that is neither subnormal nor 0.
double value_of_half(uint16_t half) {
  return std::ldexp(1024.0 + half % 1024, (half >> 10 & 31) - 25) * (half & 0x8000 ? -1 : 1);
}

// Random rows of weights in a file's format, and their values.
struct Matrix {
  Source source;
  Layout layout;
  int64_t rows, k, row_bytes;
  std::vector<uint8_t> bytes;
  std::vector<double> values;
  std::vector<double> magnitudes;  // sum of the magnitudes of a weight's addends

  Matrix(Source s, int64_t r, int64_t inputs, Random& random) : source(s), rows(r), k(inputs) {
    layout = sizes_of(source).layout;
    const int64_t step = sizes_of(source).step_bytes, per_step = sizes_of(layout).step_inputs;
    row_bytes = k / per_step * step;
    bytes.resize(rows * row_bytes);
    for (int64_t at = 0; at < rows * row_bytes; at += step) add_step(bytes.data() + at, random);
  }

 private:
  void push(double value, double magnitude) {
    values.push_back(value);
    magnitudes.push_back(magnitude);
  }

  void add_step(uint8_t* to, Random& random) {
    if (layout == Layout::kF32) {
      const float value = random.number();
      std::memcpy(to, &value, 4);
      return push(value, std::fabs(value));
    }
    if (layout == Layout::kBF16) {
      for (int i = 0; i < 2; i++) {
        const uint16_t half = to_bf16(random.number());
        std::memcpy(to + i * 2, &half, 2);
        push(from_bf16(half), std::fabs(from_bf16(half)));
      }
      return;
    }
    if (layout == Layout::kF16) {
      const auto half = static_cast<uint16_t>(random.bits() & 0xbfff);  // some are subnormal
      std::memcpy(to, &half, 2);
      return push(float_from_fp16(half), std::fabs(float_from_fp16(half)));
    }
    add_quantized(to, random);
  }

  // Random bytes, except for scales near 2^-4. The program reads them with its own copy of the
  // library's code, which tests compare with the package gguf.
  void add_quantized(uint8_t* to, Random& random) {
    for (int i = 0; i < sizes_of(source).step_bytes; i++)
      to[i] = static_cast<uint8_t>(random.bits());
    for (const int at : kHalves[static_cast<int>(source)]) {
      const auto half = static_cast<uint16_t>(11 << 10 | random.bits() % 1024);
      if (at >= 0) std::memcpy(to + at, &half, 2);
    }
    if (source == Source::kMXFP4) to[0] = static_cast<uint8_t>(120 + random.bits() % 8);
    StepRow row;
    read_step(source, to, &row);
    const Sizes sizes = sizes_of(layout);
    for (int i = 0; i < sizes.step_inputs; i++) {
      double scale = factor_of(row.factors[0]);
      double minimum = sizes.has_minimum ? factor_of(row.factors[1]) : 0;
      if (sizes.header_bytes > 0) {
        const int own = row.scales[i / sizes.group];
        const bool has_both = has_nibble_scales(layout);
        scale *= has_both ? own & 15 : own;
        minimum *= has_both ? own >> 4 & 15 : row.minima[i / kBlock];
      }
      const double product = scale * (number_of(row.numbers[i]) - sizes.zero);
      push(product + minimum, std::fabs(product) + std::fabs(minimum));
    }
  }

  double factor_of(uint16_t half) const {
    return layout == Layout::kE2M1 ? from_bf16(half) : value_of_half(half);
  }
  int number_of(uint8_t stored) const {
    if (table_of(layout) != nullptr) return table_of(layout)[stored];
    return is_signed(layout) ? static_cast<int8_t>(stored) : stored;
  }
};

// 32 inputs, rounded to int8.
void round_block(const float* x, double* rounded) {
  float largest = 0;
  for (int i = 0; i < kBlock; i++) largest = std::fmax(largest, std::fabs(x[i]));
  for (int i = 0; i < kBlock; i++) {
    const float quotient = largest == 0 ? 0 : x[i] * (127.0f / largest);
    rounded[i] = double{largest / 127.0f} * std::nearbyint(quotient);
  }
}

// A row of inputs as a product uses them: rounded to int8, block by block, with the rests of blocks
// that are more than `limit` times as large as the average.
void round_row(const float* x, int64_t k, double limit, double* used) {
  const int64_t blocks = k / kBlock;
  std::vector<float> largest(blocks);
  double total = 0;
  for (int64_t i = 0; i < k; i++)
    largest[i / kBlock] = std::fmax(largest[i / kBlock], std::fabs(x[i]));
  for (const float one : largest) total += one;
  for (int64_t b = 0; b < blocks; b++, x += kBlock, used += kBlock) {
    round_block(x, used);
    if (double{largest[b]} * static_cast<double>(blocks) <= limit * total) continue;
    float rest[kBlock];
    double rounded[kBlock];
    for (int i = 0; i < kBlock; i++) rest[i] = x[i] - static_cast<float>(used[i]);
    round_block(rest, rounded);
    for (int i = 0; i < kBlock; i++) used[i] += rounded[i];
  }
}

std::vector<double> used_inputs(const Numbers& x, int64_t rows, int64_t k,
                                InputPrecision precision) {
  const double limit = precision == InputPrecision::kTwoInt8 ? 0 : 4;
  std::vector<double> used(rows * k);
  std::vector<float> floats(rows * k);
  for (int64_t i = 0; i < rows * k; i++) used[i] = floats[i] = x.get(i);
  for (int64_t row = 0; row < rows && precision != InputPrecision::kFloat; row++)
    round_row(&floats[row * k], k, limit, &used[row * k]);
  return used;
}

struct Setting {
  Source source;
  int64_t n, k, rows;
  InputPrecision precision;
  bool gate_up, add, has_bias;
  Element out_type;
};

double activate(Activation activation, double x) {
  if (activation == Activation::kSilu) return x / (1.0 + std::exp(-x));
  return x / 2 * (1.0 + std::tanh(std::sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x)));
}

// The product of a row of x and a row of weights, and its maximum error in float, for any order of
// additions.
struct Sum {
  double value, bound;
};
Sum multiply(const Matrix& matrix, int64_t row, const double* x, double bias) {
  Sum sum = {bias, std::fabs(bias)};
  for (int64_t i = 0; i < matrix.k; i++) {
    const double input = x[i];
    sum.value += matrix.values[row * matrix.k + i] * input;
    sum.bound += matrix.magnitudes[row * matrix.k + i] * std::fabs(input);
  }
  sum.bound *= static_cast<double>(matrix.k + 4) * 0x1p-24;
  return sum;
}

void check_unpacked(const Library& library, Report& report, const PackedLinear& weights,
                    const Matrix& matrix) {
  std::vector<float> unpacked(weights.n * weights.k);
  report.expect_done(library.unpack(&weights, unpacked.data()), "tm_unpack");
  for (int64_t i = 0; i < weights.n * weights.k; i++)
    report.expect_near(unpacked[i], matrix.values[i], matrix.magnitudes[i] * 0x1p-23,
                       "unpacked weights", i / weights.k, i % weights.k);
}

void check_looked_up(const Library& library, Report& report, const PackedLinear& weights,
                     const Matrix& matrix) {
  for (const auto element : {Element::kF32, Element::kBF16}) {
    const int64_t rows[] = {weights.n - 1, 0, std::min<int64_t>(31, weights.n - 1), weights.n - 1};
    Numbers found(element, 4 * weights.k);
    report.expect_done(library.look_up(&weights, rows, 4, found.at(0), element), "tm_look_up");
    for (int64_t i = 0; i < 4 * weights.k; i++) {
      const int64_t at = rows[i / weights.k] * weights.k + i % weights.k;
      const double rounding = element == Element::kBF16 ? 0x1p-8 : 0;
      const double error = matrix.magnitudes[at] * 0x1p-23 + std::fabs(matrix.values[at]) * rounding;
      report.expect_near(found.get(i), matrix.values[at], error, "a row",
                         rows[i / weights.k], i % weights.k);
    }
  }
}

void check_product(const Library& library, Report& report, const Setting& setting) {
  Random random(setting.n * 31 + setting.rows);
  const Matrix matrix(setting.source, setting.n, setting.k, random);
  PackedLinear weights = {};
  weights.layout = matrix.layout;
  weights.input_precision = setting.precision;
  weights.n = setting.n;
  weights.k = setting.k;
  weights.gate_up = setting.gate_up;
  weights.activation = setting.rows % 3 == 0 ? Activation::kGelu : Activation::kSilu;
  const int64_t bytes = library.packed_bytes(&weights), half = setting.n / 2;
  std::vector<uint8_t> memory(bytes + 64 + 8192);  // kernels prefetch
  auto* data = memory.data() + (64 - reinterpret_cast<uintptr_t>(memory.data()) % 64) % 64;
  weights.data = data;
  WeightRows rows = {matrix.bytes.data(), matrix.bytes.data() + half * matrix.row_bytes,
                     matrix.row_bytes, setting.source};
  report.expect_done(library.pack(&weights, &rows, data), "tm_pack");
  check_unpacked(library, report, weights, matrix);
  if (!setting.gate_up) check_looked_up(library, report, weights, matrix);

  Numbers x(has_float_inputs(matrix.layout) ? Element::kF32 : Element::kBF16,
            setting.rows * setting.k);
  x.fill(random);
  // Every third row has a number that is much larger than others, so that its block has a rest.
  for (int64_t row = 0; row < setting.rows; row += 3) x.set(row * setting.k + 40, 60.0f);
  const std::vector<double> used = used_inputs(x, setting.rows, setting.k, setting.precision);
  std::vector<float> bias(setting.n);
  for (float& one : bias) one = setting.has_bias ? random.number() : 0.0f;
  const int64_t columns = setting.gate_up ? half : setting.n;
  Numbers out(setting.out_type, setting.rows * columns);
  out.fill(random);
  const Numbers before = out;
  LinearCall call = {};
  call.weights = &weights;
  call.x = x.at(0);
  call.x_stride = setting.k;
  call.rows = setting.rows;
  call.bias = setting.has_bias ? bias.data() : nullptr;
  call.out = out.at(0);
  call.out_stride = columns;
  call.out_type = setting.out_type;
  call.add_to_out = setting.add;
  report.expect_done(library.linear(&call), "tm_linear");
  for (int64_t i = 0; i < setting.rows * columns; i++) {
    const int64_t row = i / columns, column = i % columns;
    Sum sum = multiply(matrix, column, &used[row * setting.k], bias[column]);
    if (setting.gate_up) {
      const Sum up = multiply(matrix, half + column, &used[row * setting.k], bias[half + column]);
      const double activated = activate(weights.activation, sum.value);
      // The slope of an activation is at most 1.13.
      sum.bound = 1.13 * sum.bound * std::fabs(up.value) + std::fabs(activated) * up.bound +
                  std::fabs(activated * up.value) * 1e-6;
      sum.value = activated * up.value;
    }
    if (setting.add) sum.value += before.get(i);
    const double rounding = setting.out_type == Element::kBF16 ? 0x1p-8 : 0x1p-23;
    const double bound = sum.bound + std::fabs(sum.value) * rounding + 1e-30;
    report.expect_near(out.get(i), sum.value, bound, "out", row, column);
  }
}

}  // namespace

void check_linear(const Library& library, Report& report) {
  for (int i = 0; i < kNumSources; i++) {
    const auto source = static_cast<Source>(i);
    const Layout layout = sizes_of(source).layout;
    const int64_t k = sizes_of(layout).step_inputs == kSuperBlock ? 512 : 192;
    for (const auto precision :
         {InputPrecision::kFloat, InputPrecision::kInt8, InputPrecision::kTwoInt8}) {
      const bool in_floats = precision == InputPrecision::kFloat;
      if (!in_floats && !is_quantized(layout)) continue;
      const char* const inputs[] = {"int8", "floats", "two int8"};
      const std::string what =
          std::string(" in ") + kNames[i] + " and " + inputs[static_cast<int>(precision)];
      for (const int64_t rows : {1, 2, 3, 5, 7, 12, 29}) {
        for (const bool gate_up : {false, true}) {
          report.begin("product of " + std::to_string(rows) + " rows with " +
                       (gate_up ? "gate and up" : "weights") + what);
          const bool is_odd = rows % 2 != 0;
          check_product(library, report,
                        {source, gate_up ? 40 : 45, k, rows, precision, gate_up, is_odd, rows > 2,
                         is_odd ? Element::kBF16 : Element::kF32});
        }
      }
      // Rows 2 KB apart are copied, and the sums of long rows are added piece by piece. With 13 rows
      // panels are unpacked first. 17 columns need both halves of a panel.
      report.begin("product with long rows" + what);
      check_product(library, report,
                    {source, 17, 8192, 13, precision, false, false, true, Element::kF32});
    }
  }
}

}  // namespace tokenmill

#include "self_test/checks.h"

namespace tokenmill {
namespace {

const char* const kNames[] = {"float32", "bfloat16", "Q4_0", "Q4_1", "Q8_0"};

// A random half-precision number near 2^-4. Writes its value to `value`.
uint16_t random_half(Random& random, double* value) {
  const auto mantissa = static_cast<uint16_t>(random.bits() % 1024);
  *value = (1024.0 + mantissa) * 0x1p-14;
  return static_cast<uint16_t>((11 << 10) | mantissa);
}

// Random rows of weights in a file's format, and their values.
struct Matrix {
  Format format;
  int64_t rows, k, row_bytes;
  std::vector<uint8_t> bytes;
  std::vector<double> values;
  std::vector<double> magnitudes;  // sum of the magnitudes of a weight's addends

  Matrix(Format f, int64_t r, int64_t inputs, Random& random) : format(f), rows(r), k(inputs) {
    row_bytes = k / step_inputs(format) * step_bytes(format) / kPanelRows;
    bytes.resize(rows * row_bytes);
    for (int64_t row = 0; row < rows; row++) {
      for (int64_t i = 0; i < k; i += is_block_format(format) ? kBlock : 1)
        add(bytes.data() + row * row_bytes, i, random);
    }
  }

 private:
  void push(double value, double magnitude) {
    values.push_back(value);
    magnitudes.push_back(magnitude);
  }

  void add(uint8_t* row, int64_t i, Random& random) {
    if (format == Format::kF32) {
      const float value = random.number();
      std::memcpy(row + i * 4, &value, 4);
      return push(value, std::fabs(value));
    }
    if (format == Format::kBF16) {
      const uint16_t half = to_bf16(random.number());
      std::memcpy(row + i * 2, &half, 2);
      return push(from_bf16(half), std::fabs(from_bf16(half)));
    }
    add_block(row + i / kBlock * step_bytes(format) / kPanelRows, random);
  }

  // Makes a GGUF block: the scale, the minimum (Q4_1 only), then the numbers. Of nibbles, the lower
  // ones are the first half.
  void add_block(uint8_t* block, Random& random) {
    double scale, minimum = 0.0;
    const uint16_t half = random_half(random, &scale);
    std::memcpy(block, &half, 2);
    block += 2;
    if (format == Format::kQ4_1) {
      const uint16_t other = random_half(random, &minimum);
      std::memcpy(block, &other, 2);
      block += 2;
    }
    const int count = format == Format::kQ8_0 ? kBlock : kBlock / 2;
    for (int i = 0; i < count; i++) block[i] = static_cast<uint8_t>(random.bits());
    for (int i = 0; i < kBlock; i++) {
      const int nibble = i < 16 ? block[i % 16] & 15 : block[i % 16] >> 4;
      const int number = format == Format::kQ8_0   ? static_cast<int8_t>(block[i])
                         : format == Format::kQ4_0 ? nibble - 8
                                                   : nibble;
      push(scale * number + minimum, std::fabs(scale * number) + std::fabs(minimum));
    }
  }
};

struct Setting {
  Format format;
  int64_t n, k, rows;
  bool gate_up, add, has_bias;
  Element out_type;
};

double silu(double x) { return x / (1.0 + std::exp(-x)); }

// The product of a row of x and a row of weights, and its maximum error in float, for any order of
// additions.
struct Sum {
  double value, bound;
};
Sum multiply(const Matrix& matrix, int64_t row, const Numbers& x, int64_t x_row, double bias) {
  Sum sum = {bias, std::fabs(bias)};
  for (int64_t i = 0; i < matrix.k; i++) {
    const double input = x.get(x_row * matrix.k + i);
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

void check_product(const Library& library, Report& report, const Setting& setting) {
  Random random(setting.n * 31 + setting.rows);
  const Matrix matrix(setting.format, setting.n, setting.k, random);
  PackedLinear weights = {};
  weights.format = setting.format;
  weights.n = setting.n;
  weights.k = setting.k;
  weights.gate_up = setting.gate_up;
  const int64_t bytes = library.packed_bytes(&weights), half = setting.n / 2;
  std::vector<uint8_t> memory(bytes + 64 + 8192);  // kernels prefetch
  auto* data = memory.data() + (64 - reinterpret_cast<uintptr_t>(memory.data()) % 64) % 64;
  weights.data = data;
  WeightRows rows = {matrix.bytes.data(), matrix.bytes.data() + half * matrix.row_bytes,
                     matrix.row_bytes};
  report.expect_done(library.pack(&weights, &rows, data), "tm_pack");
  check_unpacked(library, report, weights, matrix);

  Numbers x(setting.format == Format::kF32 ? Element::kF32 : Element::kBF16,
            setting.rows * setting.k);
  x.fill(random);
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
    Sum sum = multiply(matrix, column, x, row, bias[column]);
    if (setting.gate_up) {
      const Sum up = multiply(matrix, half + column, x, row, bias[half + column]);
      const double activated = silu(sum.value);
      // The slope of silu is at most 1.1.
      sum.bound = 1.1 * sum.bound * std::fabs(up.value) + std::fabs(activated) * up.bound +
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
  for (int format = 0; format < kNumFormats; format++) {
    for (const int64_t rows : {1, 2, 3, 5, 7, 12, 29}) {
      for (const bool gate_up : {false, true}) {
        report.begin("product of " + std::to_string(rows) + " rows with " +
                     (gate_up ? "gate and up in " : "weights in ") + kNames[format]);
        const bool is_odd = rows % 2 != 0;
        check_product(library, report,
                      {static_cast<Format>(format), gate_up ? 72 : 77, 96, rows, gate_up, is_odd,
                       rows > 2, is_odd ? Element::kBF16 : Element::kF32});
      }
    }
    // Rows 2 KB apart are copied, and the sums of long rows are added piece by piece.
    report.begin(std::string("product with long rows in ") + kNames[format]);
    check_product(library, report, {static_cast<Format>(format), 32, 8192, 6, false, false, true,
                                    Element::kF32});
  }
}

}  // namespace tokenmill

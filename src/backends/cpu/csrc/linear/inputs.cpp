#include "linear/inputs.h"

#include <cmath>
#include <cstring>

#include "threads/scratch.h"
#include "vectors/wide.h"
#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace tokenmill {
namespace {

// Rows at a distance that is a multiple of this compete for the same few lines of L1.
constexpr int64_t kAliasBytes = 2048;
// Blocks whose largest input is smaller become zeros: 127 divided by it could be infinite.
constexpr float kSmallest = 1e-30f;
// With kInt8, a block has a rest if its largest input is this many times the average of the row's
// blocks. In SmolLM2-135M, simulated in float32, rounding inputs causes a KL divergence of 0.0019
// per token without rests, 0.0011 with rests above 5 times (3 % more work), 0.0007 above 3 times
// (11 %).
constexpr double kOutlier = 4;

thread_local Scratch inputs_scratch, group_sums_scratch;

int64_t stride_without_aliases(int64_t bytes) {
  const int64_t stride = (bytes + 63) / 64 * 64 + 64;
  return stride % kAliasBytes == 0 ? stride + 64 : stride;
}

void widen(const uint16_t* bf16, int64_t count, float* out) {
  int64_t i = 0;
  for (; i + TM_WIDTH <= count; i += TM_WIDTH) store_vector(out + i, floats_from_bf16(bf16 + i));
  for (; i < count; i++) {
    const uint32_t bits = static_cast<uint32_t>(bf16[i]) << 16;
    std::memcpy(out + i, &bits, sizeof(bits));
  }
}

// Bits of the largest magnitude of 32 bfloat16 numbers. As integers, infinity is larger than all
// numbers, and NaN is larger than infinity.
uint16_t largest_magnitude(const uint16_t* x) {
  typedef int16_t Eight __attribute__((vector_size(16)));
  Eight largest = {};
  TM_UNROLL for (int i = 0; i < kBlock; i += 8) {
    const Eight magnitude = load_vector<Eight>(x + i) & 0x7fff;
    largest = largest > magnitude ? largest : magnitude;
  }
#if defined(__SSE4_1__)
  const __m128i inverted = _mm_xor_si128((__m128i)largest, _mm_set1_epi16(-1));
  return static_cast<uint16_t>(~_mm_extract_epi16(_mm_minpos_epu16(inverted), 0));
#elif defined(__aarch64__)
  return static_cast<uint16_t>(vmaxvq_s16((int16x8_t)largest));
#else
  int16_t most = 0;
  for (int i = 0; i < 8; i++) most = largest[i] > most ? largest[i] : most;
  return static_cast<uint16_t>(most);
#endif
}

int32_t sum_of_16(const int8_t* values) {
#if defined(__SSE2__)
  // psadbw adds unsigned bytes.
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(values));
  const __m128i biased = _mm_xor_si128(bytes, _mm_set1_epi8(-128));
  const __m128i sums = _mm_sad_epu8(biased, _mm_setzero_si128());
  return _mm_cvtsi128_si32(sums) + _mm_cvtsi128_si32(_mm_srli_si128(sums, 8)) - 16 * 128;
#elif defined(__aarch64__)
  return vaddlvq_s8(vld1q_s8(values));
#else
  int32_t sum = 0;
  for (int i = 0; i < 16; i++) sum += values[i];
  return sum;
#endif
}

float largest_of_block(const uint16_t* x) {
  const uint32_t bits = static_cast<uint32_t>(largest_magnitude(x)) << 16;
  float largest;
  std::memcpy(&largest, &bits, sizeof(largest));
  return largest;
}

// Rounds 32 inputs to int8: load(i) has those from i. The self-test (linear_check.cpp) rounds in the
// same way, so each operation here matters. If an input is infinite or NaN, so are the scale
// and the product.
template <class Load>
TM_INLINE void round_block(Load load, float largest, int zero, bool in_halves, InputBlock* out) {
  const bool is_zero = largest < kSmallest;
  const float inverse = is_zero ? 0.0f : 127.0f / largest;
  TM_UNROLL for (int i = 0; i < kBlock; i += TM_WIDTH) {
    // Adding 1.5 * 2^23 leaves the nearest integer, ties to even, in the low bits.
    const Floats shifted = load(i) * inverse + 0x1.8p23f;
    const Ints rounded = (Ints)shifted - (Ints)(Floats{} + 0x1.8p23f);
    store_int8(out->values + i, rounded);
  }
  const int32_t low = sum_of_16(out->values), high = sum_of_16(out->values + 16);
  out->scale = is_zero ? 0.0f : largest / 127.0f;
  out->sum = out->scale * static_cast<float>(low + high);
  out->offsets[0] = -zero * (in_halves ? low : low + high);
  out->offsets[1] = -zero * high;
}

void round_rest(const uint16_t* x, const InputBlock& block, int zero, bool in_halves,
                InputBlock* out) {
  alignas(64) float rest[kBlock];
  Floats lanes = {};
  TM_UNROLL for (int i = 0; i < kBlock; i += TM_WIDTH) {
    const Ints values = ints_from_int8(reinterpret_cast<const uint8_t*>(block.values) + i);
    const Floats rounded = __builtin_convertvector(values, Floats) * block.scale;
    const Floats one = floats_from_bf16(x + i) - rounded;
    const Floats size = (Floats)((Ints)one & 0x7fffffff);
    lanes = size > lanes ? size : lanes;
    store_vector(rest + i, one);
  }
  float largest = 0;
  TM_UNROLL for (int i = 0; i < TM_WIDTH; i++) largest = std::fmax(largest, lanes[i]);
  const auto load = [&](int i) { return load_vector<Floats>(rest + i); };
  round_block(load, largest, zero, in_halves, out);
}

// Blocks that are more than `limit` times as large as the average have a rest.
void round_row(const uint16_t* x, int64_t blocks, double limit, int zero, bool in_halves,
               InputBlock* out) {
  double total = 0;  // exact, except for numbers that are 2^40 times smaller than others
  for (int64_t i = 0; i < blocks; i++) total += out[i].scale = largest_of_block(x + i * kBlock);
  std::memset(out + blocks, 0, blocks * sizeof(InputBlock));
  for (int64_t i = 0; i < blocks; i++, x += kBlock) {
    const float largest = out[i].scale;
    round_block([=](int at) { return floats_from_bf16(x + at); }, largest, zero, in_halves, &out[i]);
    out[i].has_rest = double{largest} * static_cast<double>(blocks) > limit * total;
    if (out[i].has_rest) round_rest(x, out[i], zero, in_halves, &out[blocks + i]);
  }
}

PreparedInputs quantize_inputs(const LinearCall& call, const TileSet& tiles, const uint16_t* x,
                               int64_t rows) {
  const Layout layout = call.weights->layout;
  const int64_t blocks = call.weights->k / kBlock;
  const bool in_halves = group_of(layout) < kBlock;
  const bool is_precise = call.weights->input_precision == InputPrecision::kTwoInt8;
  const double limit = is_precise ? 0 : kOutlier;
  PreparedInputs made = {};
  made.row_bytes = made.stride = stride_without_aliases(2 * blocks * sizeof(InputBlock));
  made.rests_at = blocks * sizeof(InputBlock);
  made.step_bytes = sizes_of(layout).blocks() * sizeof(InputBlock);
  auto* to = static_cast<char*>(inputs_scratch.bytes(rows * made.row_bytes));
  made.x = to;
  for (int64_t row = 0; row < rows; row++, x += call.x_stride, to += made.row_bytes)
    round_row(x, blocks, limit, tiles.zero, in_halves, reinterpret_cast<InputBlock*>(to));
  return made;
}

float sum_of_group(const char* x, Input input, int group) {
  float sum = 0;
  for (int i = 0; i < group; i += TM_WIDTH) {
    const Floats values = input == Input::kF32
                              ? load_vector<Floats>(reinterpret_cast<const float*>(x) + i)
                              : floats_from_bf16(reinterpret_cast<const uint16_t*>(x) + i);
    TM_UNROLL for (int lane = 0; lane < TM_WIDTH; lane++) sum += values[lane];
  }
  return sum;
}

void add_group_sums(const LinearCall& call, Input input, int64_t rows, PreparedInputs* made) {
  const int group = group_of(call.weights->layout);
  const int64_t groups = call.weights->k / group;
  const int64_t group_bytes = made->row_bytes / made->stride * group;
  float* sums = group_sums_scratch.floats(rows * groups);
  for (int64_t row = 0; row < rows; row++) {
    const char* x = made->x + row * made->row_bytes;
    for (int64_t i = 0; i < groups; i++)
      sums[row * groups + i] = sum_of_group(x + i * group_bytes, input, group);
  }
  made->group_sums = sums;
  made->group_sums_stride = groups;
}

PreparedInputs copy_inputs(const LinearCall& call, Input input, const char* x, int64_t given_bytes,
                           int64_t rows) {
  const int64_t k = call.weights->k, bytes = input == Input::kF32 ? 4 : 2;
  PreparedInputs made = {};
  made.row_bytes = stride_without_aliases(k * bytes);
  auto* to = static_cast<char*>(inputs_scratch.bytes(rows * made.row_bytes));
  made.x = to;
  for (int64_t row = 0; row < rows; row++, to += made.row_bytes) {
    const char* from = x + row * call.x_stride * given_bytes;
    if (bytes == given_bytes) {
      std::memcpy(to, from, k * bytes);
    } else {
      widen(reinterpret_cast<const uint16_t*>(from), k, reinterpret_cast<float*>(to));
    }
  }
  return made;
}

}  // namespace

PreparedInputs prepare_inputs(const LinearCall& call, const TileSet& tiles, int64_t first_row,
                              int64_t rows) {
  const Layout layout = call.weights->layout;
  const int64_t given_bytes = has_float_inputs(layout) ? 4 : 2;
  const char* x = static_cast<const char*>(call.x) + first_row * call.x_stride * given_bytes;
  if (tiles.input == Input::kBlocks)
    return quantize_inputs(call, tiles, reinterpret_cast<const uint16_t*>(x), rows);
  const int64_t bytes = tiles.input == Input::kF32 ? 4 : 2;
  const bool aliases = rows > 4 && call.x_stride * bytes % kAliasBytes == 0;
  PreparedInputs made = {};
  if (bytes != given_bytes || aliases) {
    made = copy_inputs(call, tiles.input, x, given_bytes, rows);
  } else {
    made.x = x;
    made.row_bytes = call.x_stride * bytes;
  }
  made.stride = made.row_bytes / bytes;
  made.step_bytes = sizes_of(layout).step_inputs * bytes;
  if (has_minimum(layout)) add_group_sums(call, tiles.input, rows, &made);
  return made;
}

}  // namespace tokenmill

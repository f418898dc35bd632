// Normalizes and rotates heads, and writes keys and values to the cache, for any instruction set.
#pragma once

#include <algorithm>
#include <cmath>

#include "elementwise/elementwise.h"
#include "vectors/elements.h"

namespace tokenmill {
namespace {

// Vectors of eight numbers: half a head is a multiple of 8, so no remainder is left.
typedef float Eight __attribute__((vector_size(32)));
typedef uint32_t EightWords __attribute__((vector_size(32)));
typedef uint16_t EightHalves __attribute__((vector_size(16)));

TM_INLINE Eight load_eight(const float* at) { return load_vector<Eight>(at); }
TM_INLINE Eight load_eight(const uint16_t* at) {
  return (Eight)(__builtin_convertvector(load_vector<EightHalves>(at), EightWords) << 16);
}
TM_INLINE void store_eight(float* at, Eight value) { store_vector(at, value); }
TM_INLINE void store_eight(uint16_t* at, Eight value) {
  const EightWords bits = (EightWords)value;
  const EightWords high = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const EightWords is_nan = (EightWords)(value != value);
  store_vector(at, __builtin_convertvector((is_nan & 0x7fc0u) | (~is_nan & high), EightHalves));
}

template <class Number>
TM_INLINE Eight rounded_to(Eight value) {
  Number numbers[8];
  store_eight(numbers, value);
  return load_eight(numbers);
}

// RMS norm of one head, computed as in rms_norm.
template <class Number>
void norm_head(const Number* x, const float* weight, float eps, bool float32_norm, int size,
               Number* out) {
  Eight squares = {};
  for (int i = 0; i < size; i += 8) {
    const Eight value = load_eight(x + i);
    squares += value * value;
  }
  float sum = 0;
  for (int i = 0; i < 8; i++) sum += squares[i];
  const float factor = 1.0f / std::sqrt(sum / static_cast<float>(size) + eps);
  for (int i = 0; i < size; i += 8) {
    Eight quotient = load_eight(x + i) * factor;
    if (!float32_norm) quotient = rounded_to<Number>(quotient);
    store_eight(out + i, quotient * load_eight(weight + i));
  }
}

// Rotates each pair (x[i], x[i + rotary_size / 2]), and copies what is after rotary_size. `out` may
// be `x`.
template <class Number>
void rotate_head(const Number* x, const float* cos, const float* sin, int rotary_size, int size,
                 Number* out) {
  const int half = rotary_size / 2;
  for (int i = 0; i < half; i += 8) {
    const Eight first = load_eight(x + i), second = load_eight(x + half + i);
    const Eight c = load_eight(cos + i), s = load_eight(sin + i);
    store_eight(out + i, first * c - second * s);
    store_eight(out + half + i, second * c + first * s);
  }
  if (out != x) std::copy(x + rotary_size, x + size, out + rotary_size);
}

// Writes a key: every 4 bytes, a float or a bfloat16 pair, go to another row of the group.
TM_INLINE void write_key(const void* key, int64_t bytes, int64_t group, int64_t slot, uint8_t* to) {
  const auto* from = static_cast<const uint8_t*>(key);
  to += slot * 4;
  for (int64_t at = 0; at < bytes; at += 4) {
    std::memcpy(to, from + at, 4);
    to += group * 4;
  }
}

TM_INLINE void write_value(const float* value, int size, int64_t slot, uint8_t* to) {
  std::memcpy(to + slot * size * 4, value, size * 4);
}
// Writes only this slot's two bytes of each pair: another thread may write the others.
TM_INLINE void write_value(const uint16_t* value, int size, int64_t slot, uint8_t* to) {
  auto* pairs = reinterpret_cast<uint16_t*>(to + slot / 2 * size * 4) + slot % 2;
#if TM_WIDTH == 16
  const int odd = static_cast<int>(slot % 2);
  const __mmask32 mask = 0x55555555u << odd;
  for (int i = 0; i < size; i += 16) {
    const __m256i numbers = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(value + i));
    const __m512i spread = _mm512_slli_epi32(_mm512_cvtepu16_epi32(numbers), 16 * odd);
    _mm512_mask_storeu_epi16(pairs - odd + 2 * i, mask, spread);
  }
#else
  for (int i = 0; i < size; i++) pairs[2 * i] = value[i];
#endif
}

template <class Number>
class Rotator {
 public:
  explicit Rotator(const RotateAndWriteCall& call)
      : call_(call), layout_(cache_layout(call.spec)), size_(call.spec.head_size) {}

  void run(int64_t token, int32_t kv_head) {
    if (call_.cos != nullptr) {
      const int64_t at = call_.positions[token] * (call_.rotary_size / 2);
      cos_ = call_.cos + at;
      sin_ = call_.sin + at;
    }
    if (call_.q_norm != nullptr || call_.cos != nullptr) change_queries(token, kv_head);
    write(token, kv_head);
  }

 private:
  // CPUAttention.reasons_against (attention.py) refuses larger heads.
  static constexpr int kMaxSize = 1024;

  void change_queries(int64_t token, int32_t kv_head) const {
    const int group = call_.spec.num_heads / call_.spec.num_kv_heads;
    for (int head = kv_head * group; head < (kv_head + 1) * group; head++) {
      Number* q = static_cast<Number*>(call_.q) + token * call_.q_stride + head * size_;
      change(q, call_.q_norm, q);
    }
  }

  const Number* change(const Number* x, const float* norm, Number* out) const {
    if (norm != nullptr) {
      norm_head(x, norm, call_.eps, call_.float32_norms != 0, size_, out);
      x = out;
    }
    if (cos_ != nullptr) {
      rotate_head(x, cos_, sin_, call_.rotary_size, size_, out);
      x = out;
    }
    return x;
  }

  void write(int64_t token, int32_t kv_head) const {
    const int64_t block_size = call_.spec.block_size;
    const int64_t block = call_.slots[token] / block_size, slot = call_.slots[token] % block_size;
    const int64_t in_group = slot % layout_.group;
    uint8_t* group = static_cast<uint8_t*>(call_.kv_cache) + block * layout_.block_bytes +
                     kv_head * layout_.head_bytes + (slot - in_group) * layout_.token_bytes;
    Number changed[kMaxSize];
    const int64_t head = int64_t{kv_head} * size_;
    const Number* k = static_cast<const Number*>(call_.k) + token * call_.k_stride + head;
    const Number* v = static_cast<const Number*>(call_.v) + token * call_.v_stride + head;
    const Number* key = change(k, call_.k_norm, changed);
    write_key(key, layout_.token_bytes, layout_.group, in_group, group);
    write_value(v, size_, in_group, group + layout_.value_offset);
  }

  const RotateAndWriteCall& call_;
  const CacheLayout layout_;
  const int size_;
  const float* cos_ = nullptr;
  const float* sin_ = nullptr;
};

template <class Number>
void rotate_and_write_tokens(const RotateAndWriteCall& call, int64_t begin, int64_t end) {
  Rotator<Number> rotator(call);
  const int64_t heads = call.spec.num_kv_heads;
  for (int64_t i = begin; i < end; i++) rotator.run(i / heads, static_cast<int32_t>(i % heads));
}

}  // namespace
}  // namespace tokenmill

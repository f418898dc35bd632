// The kernels for one head size, HEAD_SIZE, in the emulator, for ctypes.
#include "launch.h"
#include "launch_write.h"

namespace {

template <typename C>
void round_to(const float* from, C* to, int64_t count) {
  for (int64_t i = 0; i < count; ++i) to[i] = tokenmill::narrow<C>(from[i]);
}

// As floats by themselves, and as elements of T, of fragments.
template <typename T, typename C>
void expand(const C* from, float* alone, T* in_pairs, int64_t count) {
  for (int64_t i = 0; i < count; ++i) alone[i] = tokenmill::to_float(from[i]);
  for (int64_t i = 0; i < count; i += 4) {
    uint32_t word;
    std::memcpy(&word, from + i, 4);
    const uint32_t pairs[2] = {tokenmill::widen<T, C, 0, 2>(word),
                               tokenmill::widen<T, C, 1, 3>(word)};
    for (int k = 0; k < 4; ++k) in_pairs[i + k] = T(tokenmill::element_of<T>(pairs[k % 2], k / 2));
  }
}

}  // namespace

extern "C" {

void round_to_e4m3(const float* from, tokenmill::E4M3* to, int64_t count) {
  round_to(from, to, count);
}

void round_to_e5m2(const float* from, tokenmill::E5M2* to, int64_t count) {
  round_to(from, to, count);
}

void expand_e4m3_half(const tokenmill::E4M3* from, float* alone, tokenmill::Half* in_pairs,
                      int64_t count) {
  expand(from, alone, in_pairs, count);
}

void expand_e4m3_bfloat16(const tokenmill::E4M3* from, float* alone, tokenmill::BFloat16* in_pairs,
                          int64_t count) {
  expand(from, alone, in_pairs, count);
}

void expand_e5m2_half(const tokenmill::E5M2* from, float* alone, tokenmill::Half* in_pairs,
                      int64_t count) {
  expand(from, alone, in_pairs, count);
}

void expand_e5m2_bfloat16(const tokenmill::E5M2* from, float* alone, tokenmill::BFloat16* in_pairs,
                          int64_t count) {
  expand(from, alone, in_pairs, count);
}

const char* write_kv(const tokenmill::WriteCall* call) {
  return tokenmill::launch_write(*call, nullptr);
}

const char* attend_decodes(const tokenmill::AttentionCall* call) {
  return tokenmill::launch_decodes<HEAD_SIZE>(*call, nullptr);
}

const char* attend_prompts(const tokenmill::AttentionCall* call) {
  return tokenmill::launch_prompts<HEAD_SIZE>(*call, nullptr);
}

}

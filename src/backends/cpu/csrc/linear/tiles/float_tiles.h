// Tiles that multiply in float, for instruction sets without bfloat16 products, and for weights in
// float or half precision. Pairs of weights are widened in registers once for all rows of a tile.
// Inputs in bfloat16 are widened before.
//
// AVX2 has 16 registers. Two FMA units with a latency of four cycles need at least eight sums.
// Pairs of widened weights leave no room for more. With many rows a panel is therefore widened
// once, into a buffer in L2, and tiles of floats have 12 sums.
#pragma once

#include "linear/tiles/tiles.h"
#include "vectors/wide.h"

namespace tokenmill {
namespace {

struct FloatF32;

struct FloatIsa {
  using Sum = Lanes;
  using Input = float;
  using Unpacked = FloatF32;
  // AVX2 has 16 registers: 2 rows of whole panels need 8 for sums and 8 for a pair of weights. ARM has
  // 32 of half the size.
#if defined(__aarch64__)
  static constexpr int kMaxRowsOfWholePanels = 2;
#else
  static constexpr int kMaxRowsOfWholePanels = TM_WIDTH == 16 ? 12 : TM_WIDTH == 8 ? 2 : 1;
#endif
  struct Pair {
    Lanes even, odd;
  };
  struct InputPair {
    float even, odd;
  };

  static TM_INLINE Lanes zero() { return Lanes{}; }
  static TM_INLINE Lanes load(const float* at) { return load_lanes(at); }
  static TM_INLINE void store(float* at, const Lanes& lanes) { store_lanes(at, lanes); }
  static TM_INLINE Floats part_of(const Lanes& lanes, int part) { return lanes.part[part]; }
  static TM_INLINE Pair pair_of(const Lanes& even, const Lanes& odd) { return {even, odd}; }
  static TM_INLINE void store_pair(uint8_t* at, const Pair& pair) {
    store(reinterpret_cast<float*>(at), pair.even);
    store(reinterpret_cast<float*>(at) + kPanelRows, pair.odd);
  }
  static TM_INLINE InputPair broadcast(const float* at) { return {at[0], at[1]}; }
  static TM_INLINE void multiply_add(Lanes& sum, const Pair& weights, const InputPair& x) {
    TM_UNROLL for (int i = 0; i < kLaneParts; i++) {
      sum.part[i] += weights.even.part[i] * x.even;
      sum.part[i] += weights.odd.part[i] * x.odd;
    }
  }
};

struct FloatF32 {
  using Input = float;
  using Weights = Lanes;
  static constexpr int64_t kStepBytes = sizes_of(Layout::kF32).step_bytes();
  static constexpr int64_t kStepInputs = 1;
  static TM_INLINE Lanes load(const uint8_t* at) {
    return FloatIsa::load(reinterpret_cast<const float*>(at));
  }
  static TM_INLINE float broadcast(const float* at) { return *at; }
  static TM_INLINE void multiply_add(Lanes& sum, const Lanes& weights, float x) {
    TM_UNROLL for (int i = 0; i < kLaneParts; i++) sum.part[i] += weights.part[i] * x;
  }
};

struct FloatBF16 {
  using Input = float;
  using Weights = FloatIsa::Pair;
  static constexpr int64_t kStepBytes = sizes_of(Layout::kBF16).step_bytes();
  static constexpr int64_t kStepInputs = 2;
  static TM_INLINE FloatIsa::Pair load(const uint8_t* at) {
    FloatIsa::Pair pair;
    TM_UNROLL for (int i = 0; i < kLaneParts; i++) {
      const Words words = load_vector<Words>(at + i * TM_WIDTH * 4);
      pair.even.part[i] = (Floats)(words << 16);
      pair.odd.part[i] = (Floats)(words & 0xffff0000u);
    }
    return pair;
  }
  static TM_INLINE FloatIsa::InputPair broadcast(const float* at) {
    return FloatIsa::broadcast(at);
  }
  static TM_INLINE void multiply_add(Lanes& sum, const FloatIsa::Pair& weights,
                                     const FloatIsa::InputPair& x) {
    FloatIsa::multiply_add(sum, weights, x);
  }
  // Widens some steps of a panel.
  static void unpack(const uint8_t* weights, int64_t steps, uint8_t* unpacked) {
    for (int64_t half = 0; half < 2 * steps; half++) {
      uint8_t* to = unpacked + half / 2 * 2 * FloatF32::kStepBytes + half % 2 * kLineBytes;
      FloatIsa::store_pair(to, load(weights + half * kLineBytes));
    }
  }
};

// Converting a register of half precision takes one instruction on most CPUs.
struct FloatF16 {
  using Input = float;
  using Weights = Lanes;
  static constexpr int64_t kStepBytes = sizes_of(Layout::kF16).step_bytes();
  static constexpr int64_t kStepInputs = 1;
  static TM_INLINE Lanes load(const uint8_t* at) {
    Lanes lanes;
    TM_UNROLL for (int i = 0; i < kLaneParts; i++)
      lanes.part[i] = floats_from_fp16(reinterpret_cast<const uint16_t*>(at) + i * TM_WIDTH);
    return lanes;
  }
  static TM_INLINE float broadcast(const float* at) { return *at; }
  static TM_INLINE void multiply_add(Lanes& sum, const Lanes& weights, float x) {
    FloatF32::multiply_add(sum, weights, x);
  }
  // Converts some steps of a panel.
  static void unpack(const uint8_t* weights, int64_t steps, uint8_t* unpacked) {
    for (int64_t half = 0; half < 2 * steps; half++)
      store_lanes(reinterpret_cast<float*>(unpacked) + half * kLaneRows,
                  load(weights + half * kStepBytes / 2));
  }
};

}  // namespace
}  // namespace tokenmill

// Tiles that multiply in float, for instruction sets without bfloat16 products. Pairs of weights
// are widened in registers once for all rows. Inputs are widened before.
#pragma once

#include "linear/tiles.h"
#include "vectors/wide.h"

namespace tokenmill {
namespace {

struct FloatIsa {
  using Sum = Lanes;
  using Input = float;
  // AVX2 has 16 registers: 2 rows of whole panels need 8 for sums and 8 for a pair of weights.
  static constexpr int kMaxRowsOfWholePanels = TM_WIDTH == 16 ? 12 : TM_WIDTH == 8 ? 2 : 1;
  struct Pair {
    Lanes even, odd;
  };
  struct InputPair {
    float even, odd;
  };

  static TM_INLINE Lanes zero() { return splat(0.0f); }
  static TM_INLINE Lanes splat(float value) { return tokenmill::splat(value); }
  static TM_INLINE Lanes load(const float* at) { return load_lanes(at); }
  static TM_INLINE void store(float* at, const Lanes& lanes) { store_lanes(at, lanes); }
  static TM_INLINE Lanes load_fp16(const uint16_t* at) {
    Lanes lanes;
    TM_UNROLL for (int i = 0; i < kLaneParts; i++)
      lanes.part[i] = floats_from_fp16(at + i * TM_WIDTH);
    return lanes;
  }
  static TM_INLINE Lanes fused(Lanes sum, const Lanes& a, const Lanes& b) {
    TM_UNROLL for (int i = 0; i < kLaneParts; i++) sum.part[i] += a.part[i] * b.part[i];
    return sum;
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
  static constexpr int64_t kStepBytes = step_bytes(Format::kF32);
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
  static constexpr int64_t kStepBytes = step_bytes(Format::kBF16);
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
};

// kZero is the nibble that means 0.
template <Format kFormat, int kZero>
struct FloatNibbles {
  static constexpr int64_t kStepBytes = step_bytes(kFormat);
  static constexpr int64_t kHalfBytes = kBlock / 2 * kLaneRows;
  static constexpr bool kHasMinimum = kFormat == Format::kQ4_1;

  class Unpacker {
   public:
    TM_INLINE explicit Unpacker(const uint8_t* at) : at_(at) {}
    TM_INLINE FloatIsa::Pair get(int pair) const {
      const int shift = pair % 4 * 4;
      FloatIsa::Pair result;
      TM_UNROLL for (int i = 0; i < kLaneParts; i++) {
        const Ints words = load_vector<Ints>(at_ + pair / 4 * 64 + i * TM_WIDTH * 4);
        const Ints even = (words >> shift) & 15, odd = (words >> (shift + 16)) & 15;
        result.even.part[i] = __builtin_convertvector(even - kZero, Floats);
        result.odd.part[i] = __builtin_convertvector(odd - kZero, Floats);
      }
      return result;
    }

   private:
    const uint8_t* at_;
  };
};

struct FloatBytes {
  static constexpr int64_t kStepBytes = step_bytes(Format::kQ8_0);
  static constexpr int64_t kHalfBytes = kBlock * kLaneRows;
  static constexpr bool kHasMinimum = false;

  class Unpacker {
   public:
    TM_INLINE explicit Unpacker(const uint8_t* at) : at_(at) {}
    TM_INLINE FloatIsa::Pair get(int pair) const {
      FloatIsa::Pair result;
      TM_UNROLL for (int i = 0; i < kLaneParts; i++) {
        const auto both = load_vector<ShortInts>(at_ + pair * 32 + i * TM_WIDTH * 2);
        const Ints words = __builtin_convertvector(both, Ints);
        result.even.part[i] = __builtin_convertvector((Ints)((Words)words << 24) >> 24, Floats);
        result.odd.part[i] = __builtin_convertvector(words >> 8, Floats);
      }
      return result;
    }

   private:
    const uint8_t* at_;
  };
};

}  // namespace
}  // namespace tokenmill

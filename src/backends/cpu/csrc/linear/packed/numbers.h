// Reads the numbers and scales of quantized layouts, for any instruction set.
//
// Code here handles registers: a line has kLaneParts of them, a panel's row of scales kPanelParts.
#pragma once

#include "linear/packed/tables.h"
#include "vectors/wide.h"

namespace tokenmill {
namespace {

constexpr int kPanelParts = 2 * kLaneParts;
constexpr int kRegisterBytes = 4 * TM_WIDTH;

// One register has TM_WIDTH rows, with the bytes of four inputs in each 32-bit lane.
template <Layout kLayout>
struct Numbers {
  static constexpr Sizes kSizes = sizes_of(kLayout);
  static constexpr int kGroup = group_of(kLayout);
  static constexpr int kGroups = kBlock / kGroup;
  static constexpr int kGroupLines = kGroup / 4;

  // Register `part` (of a panel) of line `i`, with the bytes of numbers.
  static TM_INLINE Words line(const uint8_t* block, int part, int i) {
    const uint8_t* at = block + part / kLaneParts * kSizes.half_bytes();
    at += part % kLaneParts * kRegisterBytes;
    const Words low = lines_of<kLow>(at, i, 0);
    if constexpr (table_of(kLayout) != nullptr) return look_up(table_of(kLayout), low);
    if constexpr (kHigh == 0) return low;
    return low | lines_of<kHigh>(at + kLow * kLineBytes, i, kLow);
  }

 private:
  static constexpr int kLow = kSizes.low_bits(), kHigh = kSizes.bits - kLow;

  // kBits bits of each byte of line `i`, moved to the left.
  template <int kBits>
  static TM_INLINE Words lines_of(const uint8_t* at, int i, int left) {
    const Words words = load_vector<Words>(at + i * kBits / 8 * kLineBytes);
    if constexpr (kBits == 8) return words;
    const uint32_t mask = ((1u << kBits) - 1u) * 0x01010101u << left;
    return shifted(words, left - i * kBits % 8) & mask;
  }
  static TM_INLINE Words shifted(Words words, int left) {
    return left >= 0 ? words << left : words >> -left;
  }
};

// Scales and minima of a block, by register of a panel.
template <Layout kLayout>
class Scales {
 public:
  TM_INLINE Scales(const uint8_t* header, const uint8_t* block)
      : header_(header), at_(block + 2 * sizes_of(kLayout).half_bytes()) {}

  TM_INLINE Floats scale(int part, int group) const {
    const int row = part * TM_WIDTH;
    if constexpr (kLayout == Layout::kE2M1) return floats_from_bf16(halves(at_) + row);
    if constexpr (sizes_of(kLayout).header_bytes == 0) return floats_from_fp16(halves(at_) + row);
    Ints scale = ints_from_int8(at_ + group * kPanelRows + row);
    if constexpr (has_nibble_scales(kLayout)) scale &= 15;
    return floats_from_fp16(halves(header_) + row) * __builtin_convertvector(scale, Floats);
  }
  TM_INLINE Floats minimum(int part, int group) const {
    const int row = kPanelRows + part * TM_WIDTH;
    if constexpr (has_nibble_scales(kLayout)) {
      const Ints both = ints_from_int8(at_ + group * kPanelRows + part * TM_WIDTH);
      return floats_from_fp16(halves(header_) + row) *
             __builtin_convertvector(both >> 4 & 15, Floats);
    }
    if constexpr (sizes_of(kLayout).header_bytes == 0) return floats_from_fp16(halves(at_) + row);
    return floats_from_fp16(halves(header_) + row) *
           __builtin_convertvector(ints_from_int8(at_ + row), Floats);
  }

 private:
  static TM_INLINE const uint16_t* halves(const uint8_t* at) {
    return reinterpret_cast<const uint16_t*>(at);
  }
  const uint8_t* header_;
  const uint8_t* at_;
};

}  // namespace
}  // namespace tokenmill

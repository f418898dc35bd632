// Reads the numbers and scales of quantized layouts, for any instruction set.
//
// Code here handles registers: a line has kLaneParts of them, a panel's row of scales kPanelParts.
#pragma once

#include "linear/linear.h"
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

  // Register `part` (of a panel) of line `i`. Of all layouts except kBytes the bytes are unsigned.
  static TM_INLINE Words line(const uint8_t* block, int part, int i) {
    const uint8_t* at = block + part / kLaneParts * kSizes.half_bytes;
    at += part % kLaneParts * kRegisterBytes;
    if constexpr (kLayout == Layout::kBytes) return load_vector<Words>(at + i * kLineBytes);
    const Words pair = load_vector<Words>(at + i / 2 * kLineBytes);
    const Words low = (i % 2 == 0 ? pair : pair >> 4) & 0x0f0f0f0fu;
    const uint8_t* planes = at + 4 * kLineBytes;
    if constexpr (kSizes.bits == 5) {
      return low | (shifted(load_vector<Words>(planes), 4 - i) & 0x10101010u);
    } else if constexpr (kSizes.bits == 6) {
      const Words plane = load_vector<Words>(planes + i / 4 * kLineBytes);
      return low | (shifted(plane, 4 - i % 4 * 2) & 0x30303030u);
    } else {
      return low;
    }
  }

 private:
  static TM_INLINE Words shifted(Words words, int left) {
    return left >= 0 ? words << left : words >> -left;
  }
};

// Scales and minima of a block, by register of a panel.
template <Layout kLayout>
class Scales {
 public:
  TM_INLINE Scales(const uint8_t* header, const uint8_t* block)
      : header_(header), at_(block + 2 * sizes_of(kLayout).half_bytes) {}

  TM_INLINE Floats scale(int part, int group) const {
    const int row = part * TM_WIDTH;
    if constexpr (sizes_of(kLayout).header_bytes == 0) return floats_from_fp16(halves(at_) + row);
    return floats_from_fp16(halves(header_) + row) *
           floats_from_int8(at_ + group * kPanelRows + row);
  }
  TM_INLINE Floats minimum(int part) const {
    const int row = kPanelRows + part * TM_WIDTH;
    if constexpr (sizes_of(kLayout).header_bytes == 0) return floats_from_fp16(halves(at_) + row);
    return floats_from_fp16(halves(header_) + row) * floats_from_int8(at_ + row);
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

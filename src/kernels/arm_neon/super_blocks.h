// Super-blocks of 256 elements, unpacked to int8 values. Source of the layouts: GGUF/ggml type definitions.
// Everything is static, see common.h.
#pragma once

#include "kernels/arm_neon/common.h"

namespace ganglion::kernels {

/// An unpacked super-block: values of 16 groups of 16, before scaling; types with groups of 32 have each
/// sub-scale and sub-minimum twice.
struct Super {
  int8x16_t values[16];
  int8x16_t sub_scales;
  uint8x16_t sub_mins;
};

/// The 2-bit fields at kShift of 16 bytes.
template <int kShift>
GANGLION_INLINE uint8x16_t two_bits(uint8x16_t bytes) {
  if constexpr (kShift == 0) {
    return vandq_u8(bytes, vdupq_n_u8(3));
  } else {
    return vandq_u8(vshrq_n_u8(bytes, kShift), vdupq_n_u8(3));
  }
}

/// Bytes all ones where bit `bit` is set.
GANGLION_INLINE uint8x16_t bit_set(uint8x16_t bytes, int bit) {
  return vtstq_u8(bytes, vdupq_n_u8(static_cast<uint8_t>(1 << bit)));
}

GANGLION_INLINE uint8x16_t low_nibbles(uint8x16_t bytes) {
  return vandq_u8(bytes, vdupq_n_u8(15));
}

/// 64 bytes of four 2-bit codes: byte k of each 32 holds elements k, k + 32, k + 64, k + 96.
GANGLION_INLINE void unpack_two_bits(const uint8_t* p, uint8x16_t* codes) {
  for (int i = 0; i < 4; ++i) {
    const uint8x16_t bytes = load_u8(p + 16 * i);
    uint8x16_t* to = codes + 8 * (i / 2) + i % 2;
    to[0] = two_bits<0>(bytes);
    to[2] = two_bits<2>(bytes);
    to[4] = two_bits<4>(bytes);
    to[6] = two_bits<6>(bytes);
  }
}

/// Four words as 16 bytes.
GANGLION_INLINE uint8x16_t bytes_of(uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  const uint32_t words[4] = {a, b, c, d};
  return vreinterpretq_u8_u32(vld1q_u32(words));
}

/// Scales and minima of Q4_K and Q5_K: 12 bytes of eight 6-bit pairs, for groups of 32.
GANGLION_INLINE void unpack_k_scales(const uint8_t* p, Super* super) {
  const uint32_t first = load_u32(p), second = load_u32(p + 4), third = load_u32(p + 8);
  const uint32_t high_scales = (third & 0x0f0f0f0fu) | ((first >> 2) & 0x30303030u);
  const uint32_t high_mins = ((third >> 4) & 0x0f0f0f0fu) | ((second >> 2) & 0x30303030u);
  const uint8x16_t both = bytes_of(first & 0x3f3f3f3fu, high_scales, second & 0x3f3f3f3fu, high_mins);
  super->sub_scales = as_signed(vzip1q_u8(both, both));
  super->sub_mins = vzip2q_u8(both, both);
}

/// What all types say of themselves: `kGroup` elements share a sub-scale; `kMinAt` is -1 without minima.
template <TensorType kTypeIn, size_t kBytesIn, size_t kGroupIn, int kScaleAtIn, int kMinAtIn>
struct SuperTraits {
  static constexpr TensorType kType = kTypeIn;
  static constexpr size_t kBytes = kBytesIn;
  static constexpr size_t kGroup = kGroupIn;
  static constexpr int kScaleAt = kScaleAtIn;
  static constexpr int kMinAt = kMinAtIn;
  static constexpr bool kHasMin = kMinAtIn >= 0;
};

struct Q2K : SuperTraits<TensorType::kQ2_K, 84, 16, 80, 82> {
  GANGLION_INLINE void unpack(const uint8_t* p, Super* super) {
    const uint8x16_t packed = load_u8(p);
    super->sub_scales = as_signed(low_nibbles(packed));
    super->sub_mins = vshrq_n_u8(packed, 4);
    uint8x16_t codes[16];
    unpack_two_bits(p + 16, codes);
    for (int g = 0; g < 16; ++g) super->values[g] = as_signed(codes[g]);
  }
};

struct Q3K : SuperTraits<TensorType::kQ3_K, 110, 16, 108, -1> {
  GANGLION_INLINE void unpack(const uint8_t* p, Super* super) {
    const uint32_t first = load_u32(p + 96), second = load_u32(p + 100), top = load_u32(p + 104);
    const auto join = [](uint32_t low, uint32_t high) {
      return (low & 0x0f0f0f0fu) | (high & 0x03030303u) << 4;
    };
    const uint8x16_t scales = bytes_of(join(first, top), join(second, top >> 2), join(first >> 4, top >> 4),
                                       join(second >> 4, top >> 6));
    super->sub_scales = vsubq_s8(as_signed(scales), vdupq_n_s8(32));
    uint8x16_t codes[16];
    unpack_two_bits(p + 32, codes);
    // Without the third bit, a code stands for four less.
    const uint8x16_t high[2] = {load_u8(p), load_u8(p + 16)}, minus_4 = vdupq_n_u8(0xfc);
    for (int g = 0; g < 16; ++g) {
      const uint8x16_t below = vbicq_u8(minus_4, bit_set(high[g % 2], g / 2));
      super->values[g] = as_signed(vorrq_u8(codes[g], below));
    }
  }
};

struct Q4K : SuperTraits<TensorType::kQ4_K, 144, 32, 0, 2> {
  GANGLION_INLINE void unpack(const uint8_t* p, Super* super) {
    unpack_k_scales(p + 4, super);
    for (int i = 0; i < 8; ++i) {
      const uint8x16_t bytes = load_u8(p + 16 + 16 * i);
      int8x16_t* to = super->values + 4 * (i / 2) + i % 2;
      to[0] = as_signed(low_nibbles(bytes));
      to[2] = as_signed(vshrq_n_u8(bytes, 4));
    }
  }
};

struct Q5K : SuperTraits<TensorType::kQ5_K, 176, 32, 0, 2> {
  GANGLION_INLINE void unpack(const uint8_t* p, Super* super) {
    unpack_k_scales(p + 4, super);
    const uint8x16_t high[2] = {load_u8(p + 16), load_u8(p + 32)}, sixteen = vdupq_n_u8(16);
    for (int i = 0; i < 8; ++i) {
      const uint8x16_t bytes = load_u8(p + 48 + 16 * i);
      const uint8x16_t first = vandq_u8(sixteen, bit_set(high[i % 2], i / 2 * 2));
      const uint8x16_t second = vandq_u8(sixteen, bit_set(high[i % 2], i / 2 * 2 + 1));
      int8x16_t* to = super->values + 4 * (i / 2) + i % 2;
      to[0] = as_signed(vorrq_u8(low_nibbles(bytes), first));
      to[2] = as_signed(vorrq_u8(vshrq_n_u8(bytes, 4), second));
    }
  }
};

struct Q6K : SuperTraits<TensorType::kQ6_K, 210, 16, 208, -1> {
  GANGLION_INLINE void unpack(const uint8_t* p, Super* super) {
    super->sub_scales = load_s8(p + 192);
    for (int i = 0; i < 4; ++i) {
      const uint8_t* low = p + 64 * (i / 2) + 16 * (i % 2);
      const uint8x16_t first = load_u8(low), second = load_u8(low + 32), high = load_u8(p + 128 + 16 * i);
      int8x16_t* to = super->values + 8 * (i / 2) + i % 2;
      to[0] = value(low_nibbles(first), vshlq_n_u8(high, 4));
      to[2] = value(low_nibbles(second), vshlq_n_u8(high, 2));
      to[4] = value(vshrq_n_u8(first, 4), high);
      to[6] = value(vshrq_n_u8(second, 4), vshrq_n_u8(high, 2));
    }
  }

 private:
  GANGLION_INLINE int8x16_t value(uint8x16_t nibbles, uint8x16_t top) {
    const uint8x16_t codes = vorrq_u8(nibbles, vandq_u8(top, vdupq_n_u8(0x30)));
    return vsubq_s8(as_signed(codes), vdupq_n_s8(32));
  }
};

struct Iq4Xs : SuperTraits<TensorType::kIQ4_XS, 136, 32, 0, -1> {
  GANGLION_INLINE void unpack(const uint8_t* p, Super* super) {
    const int16_t shifts[8] = {0, -2, -4, -6, -8, -10, -12, -14};
    const uint16x8_t top = vshlq_u16(vdupq_n_u16(load_u16(p + 2)), vld1q_s16(shifts));
    const uint8x8_t bytes = vreinterpret_u8_u32(vdup_n_u32(load_u32(p + 4)));
    const uint8x8_t low = vzip1_u8(vand_u8(bytes, vdup_n_u8(15)), vshr_n_u8(bytes, 4));
    const uint8x8_t high = vshl_n_u8(vand_u8(vmovn_u16(top), vdup_n_u8(3)), 4);
    const int8x8_t scales = vsub_s8(vreinterpret_s8_u8(vorr_u8(low, high)), vdup_n_s8(32));
    super->sub_scales = vcombine_s8(vzip1_s8(scales, scales), vzip2_s8(scales, scales));
    const int8_t codebook[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
    const int8x16_t values = vld1q_s8(codebook);
    for (int j = 0; j < 8; ++j) {
      const uint8x16_t codes = load_u8(p + 8 + 16 * j);
      super->values[2 * j] = vqtbl1q_s8(values, low_nibbles(codes));
      super->values[2 * j + 1] = vqtbl1q_s8(values, vshrq_n_u8(codes, 4));
    }
  }
};

}  // namespace ganglion::kernels

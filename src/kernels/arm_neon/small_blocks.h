// Blocks of 32 elements, unpacked to int8 values. Source of the layouts: GGUF/ggml type definitions.
// Everything is static, see common.h.
#pragma once

#include "kernels/arm_neon/common.h"

namespace ganglion::kernels {

/// The values of a block before scaling: elements 0 to 15, and 16 to 31.
struct Block {
  int8x16_t low;
  int8x16_t high;
};

/// Four blocks, of one row or of four.
struct FourBlocks {
  const uint8_t* p[4];
};

/// The half-precision numbers `at` bytes into four blocks.
GANGLION_INLINE float32x4_t halves_of(const FourBlocks& blocks, size_t at) {
  uint16x4_t bits = vdup_n_u16(load_u16(blocks.p[0] + at));
  bits = vset_lane_u16(load_u16(blocks.p[1] + at), bits, 1);
  bits = vset_lane_u16(load_u16(blocks.p[2] + at), bits, 2);
  return from_halves(vset_lane_u16(load_u16(blocks.p[3] + at), bits, 3));
}

/// Low nibbles of 16 bytes are elements 0 to 15, high ones the others.
struct Nibbles {
  uint8x16_t low;
  uint8x16_t high;
};

GANGLION_INLINE Nibbles nibbles_of(const uint8_t* p) {
  const uint8x16_t bytes = load_u8(p);
  return {vandq_u8(bytes, vdupq_n_u8(15)), vshrq_n_u8(bytes, 4)};
}

/// Byte i all ones where bit i of the 16 bits at p is set.
GANGLION_INLINE uint8x16_t spread_bits(const uint8_t* p) {
  const uint8_t bit[16] = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
  return vtstq_u8(vcombine_u8(vdup_n_u8(p[0]), vdup_n_u8(p[1])), vld1q_u8(bit));
}

GANGLION_INLINE Block look_up(const int8_t* values, const Nibbles& codes) {
  const int8x16_t table = vld1q_s8(values);
  return {vqtbl1q_s8(table, codes.low), vqtbl1q_s8(table, codes.high)};
}

/// The nonlinear 4-bit codebook of IQ4_NL and IQ4_XS.
static constexpr int8_t kIq4Values[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                          1,    13,   25,  38,  53,  69,  89,  113};
/// Twice the E2M1 values of MXFP4.
static constexpr int8_t kFp4Values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

/// What all types say of themselves. The scale, and the minimum behind it, are the first halves of a block.
template <TensorType kTypeIn, size_t kBytesIn, bool kHasMinIn>
struct SmallTraits {
  static constexpr TensorType kType = kTypeIn;
  static constexpr size_t kBytes = kBytesIn;
  static constexpr bool kHasMin = kHasMinIn;
  GANGLION_INLINE float32x4_t scales(const FourBlocks& blocks) { return halves_of(blocks, 0); }
  GANGLION_INLINE float32x4_t mins(const FourBlocks& blocks) { return halves_of(blocks, 2); }
};

struct Q4_0 : SmallTraits<TensorType::kQ4_0, 18, false> {
  GANGLION_INLINE Block unpack(const uint8_t* p) {
    const Nibbles codes = nibbles_of(p + 2);
    const int8x16_t offset = vdupq_n_s8(8);
    return {vsubq_s8(as_signed(codes.low), offset), vsubq_s8(as_signed(codes.high), offset)};
  }
};

struct Q4_1 : SmallTraits<TensorType::kQ4_1, 20, true> {
  GANGLION_INLINE Block unpack(const uint8_t* p) {
    const Nibbles codes = nibbles_of(p + 4);
    return {as_signed(codes.low), as_signed(codes.high)};
  }
};

struct Q5_0 : SmallTraits<TensorType::kQ5_0, 22, false> {
  /// Codes are 16 above their value: with the fifth bit, the nibble is the value, and without, 16 more.
  GANGLION_INLINE Block unpack(const uint8_t* p) {
    const Nibbles codes = nibbles_of(p + 6);
    const uint8x16_t minus_16 = vdupq_n_u8(0xf0);
    return {as_signed(vorrq_u8(codes.low, vbicq_u8(minus_16, spread_bits(p + 2)))),
            as_signed(vorrq_u8(codes.high, vbicq_u8(minus_16, spread_bits(p + 4))))};
  }
};

struct Q5_1 : SmallTraits<TensorType::kQ5_1, 24, true> {
  GANGLION_INLINE Block unpack(const uint8_t* p) {
    const Nibbles codes = nibbles_of(p + 8);
    const uint8x16_t sixteen = vdupq_n_u8(16);
    return {as_signed(vorrq_u8(codes.low, vandq_u8(sixteen, spread_bits(p + 4)))),
            as_signed(vorrq_u8(codes.high, vandq_u8(sixteen, spread_bits(p + 6))))};
  }
};

struct Q8_0 : SmallTraits<TensorType::kQ8_0, 34, false> {
  GANGLION_INLINE Block unpack(const uint8_t* p) { return {load_s8(p + 2), load_s8(p + 18)}; }
};

struct Iq4Nl : SmallTraits<TensorType::kIQ4_NL, 18, false> {
  GANGLION_INLINE Block unpack(const uint8_t* p) { return look_up(kIq4Values, nibbles_of(p + 2)); }
};

struct Mxfp4 : SmallTraits<TensorType::kMXFP4, 17, false> {
  GANGLION_INLINE Block unpack(const uint8_t* p) { return look_up(kFp4Values, nibbles_of(p + 1)); }
  /// Half the power of two of an E8M0 exponent; the two lowest are subnormal.
  GANGLION_INLINE float32x4_t scales(const FourBlocks& blocks) {
    const uint32_t exponents[4] = {blocks.p[0][0], blocks.p[1][0], blocks.p[2][0], blocks.p[3][0]};
    const uint32x4_t e = vld1q_u32(exponents);
    const uint32x4_t normal = vshlq_n_u32(vsubq_u32(e, vdupq_n_u32(1)), 23);
    const uint32x4_t subnormal = vshlq_u32(vdupq_n_u32(0x00200000), vreinterpretq_s32_u32(e));
    return vreinterpretq_f32_u32(vbslq_u32(vcltq_u32(e, vdupq_n_u32(2)), subnormal, normal));
  }
};

}  // namespace ganglion::kernels

// NEON kernels of transposed down rows. Same bits as reference/down.cc.
#include "kernels/arm_neon/common.h"

namespace ganglion::kernels {
namespace {

/// A block of 32 as eight vectors of floats, before scaling.
struct Block {
  float32x4_t codes[8];
};

/// Elements 0 to 15, and 16 to 31.
GANGLION_INLINE Block widen(int8x16_t first, int8x16_t second) {
  const int16x8_t parts[4] = {vmovl_s8(vget_low_s8(first)), vmovl_high_s8(first),
                              vmovl_s8(vget_low_s8(second)), vmovl_high_s8(second)};
  Block block;
  for (size_t k = 0; k < 4; ++k) {
    block.codes[2 * k] = vcvtq_f32_s32(vmovl_s16(vget_low_s16(parts[k])));
    block.codes[2 * k + 1] = vcvtq_f32_s32(vmovl_high_s16(parts[k]));
  }
  return block;
}

struct Q4 {
  static constexpr size_t kBytes = 18;
  GANGLION_INLINE float scale(const uint8_t* p, float w) { return w * half_scalar(p); }
  GANGLION_INLINE Block load(const uint8_t* p) {
    const uint8x16_t bytes = load_u8(p + 2);
    const int8x16_t low = as_signed(vandq_u8(bytes, vdupq_n_u8(15)));
    const int8x16_t high = as_signed(vshrq_n_u8(bytes, 4));
    return widen(vsubq_s8(low, vdupq_n_s8(8)), vsubq_s8(high, vdupq_n_s8(8)));
  }
};

struct Q6 {
  static constexpr size_t kBytes = 26;
  GANGLION_INLINE float scale(const uint8_t* p, float w) { return w * half_scalar(p); }
  GANGLION_INLINE Block load(const uint8_t* p) {
    const uint8x16_t bytes = load_u8(p + 2);
    const uint8x8_t bits = vld1_u8(p + 18);
    // Quarter k of the block takes bits 2k, 2k + 1 of the eight bytes.
    const uint8x16_t low = vcombine_u8(vshl_n_u8(bits, 4), vshl_n_u8(bits, 2));
    const uint8x16_t high = vcombine_u8(bits, vshr_n_u8(bits, 2));
    return widen(value(vandq_u8(bytes, vdupq_n_u8(15)), low), value(vshrq_n_u8(bytes, 4), high));
  }

 private:
  GANGLION_INLINE int8x16_t value(uint8x16_t nibbles, uint8x16_t top) {
    const uint8x16_t codes = vorrq_u8(nibbles, vandq_u8(top, vdupq_n_u8(0x30)));
    return vsubq_s8(as_signed(codes), vdupq_n_s8(32));
  }
};

struct Q8 {
  static constexpr size_t kBytes = 34;
  GANGLION_INLINE float scale(const uint8_t* p, float w) { return w * half_scalar(p); }
  GANGLION_INLINE Block load(const uint8_t* p) { return widen(load_s8(p + 2), load_s8(p + 18)); }
};

struct F16 {
  static constexpr size_t kBytes = 64;
  GANGLION_INLINE float scale(const uint8_t*, float w) { return w; }
  GANGLION_INLINE Block load(const uint8_t* p) {
    Block block;
    for (size_t k = 0; k < 8; ++k) block.codes[k] = from_halves(vreinterpret_u16_u8(vld1_u8(p + 8 * k)));
    return block;
  }
};

struct F32 {
  static constexpr size_t kBytes = 128;
  GANGLION_INLINE float scale(const uint8_t*, float w) { return w; }
  GANGLION_INLINE Block load(const uint8_t* p) {
    Block block;
    for (size_t k = 0; k < 8; ++k) block.codes[k] = vreinterpretq_f32_u8(load_u8(p + 16 * k));
    return block;
  }
};

/// `kRows` rows pass over `out` at once, in order: each block of `out` is loaded and stored once for all.
template <class Type, size_t kRows>
GANGLION_INLINE void axpy_rows(const DownArgs& args, size_t first) {
  const size_t offset = args.begin / 32 * Type::kBytes;
  const uint8_t* rows[kRows];
  const size_t end = args.count + args.more;
  const uint8_t* later[kRows];  // The rows after these: their bytes are asked for meanwhile.
  for (size_t j = 0; j < kRows; ++j) {
    rows[j] = args.rows[first + j] + offset;
    later[j] = args.rows[first + kRows + j < end ? first + kRows + j : end - 1] + offset;
  }
  for (size_t i = 0; i < args.n; i += 32) {
    float32x4_t acc[8];
    for (size_t k = 0; k < 8; ++k) acc[k] = vld1q_f32(args.out + i + 4 * k);
    for (size_t j = 0; j < kRows; ++j) {
      const float scale = Type::scale(rows[j], args.weights[first + j]);
      const Block block = Type::load(rows[j]);
      for (size_t k = 0; k < 8; ++k) acc[k] = vfmaq_n_f32(acc[k], block.codes[k], scale);
      prefetch<Type::kBytes>(later[j]);
      rows[j] += Type::kBytes;
      later[j] += Type::kBytes;
    }
    for (size_t k = 0; k < 8; ++k) vst1q_f32(args.out + i + 4 * k, acc[k]);
  }
}

template <class Type>
void down_axpy(const DownArgs& args) {
  size_t j = 0;
  for (; j + 4 <= args.count; j += 4) axpy_rows<Type, 4>(args, j);
  for (; j < args.count; ++j) axpy_rows<Type, 1>(args, j);
}

}  // namespace

const DownAxpyFn* neon_down() {
  static const DownAxpyFn kernels[kDownTypes] = {down_axpy<Q4>, down_axpy<Q6>, down_axpy<Q8>, down_axpy<F16>,
                                                 down_axpy<F32>};
  return kernels;
}

}  // namespace ganglion::kernels

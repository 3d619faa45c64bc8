// Helpers of the ARM kernels. Everything is static: sources here are compiled for several instruction sets,
// so nothing may be shared between objects, and each object exports its accessor alone. No STL.
#pragma once

#include <arm_neon.h>

#include <cstring>

#include "kernels/arm_dotprod/dotprod.h"
#include "kernels/arm_i8mm/i8mm.h"
#include "kernels/arm_neon/neon.h"

#define GANGLION_INLINE [[maybe_unused]] [[gnu::always_inline]] static inline

/// The accessor of a part that is compiled for several tables, and that of its kernels for few tokens.
#if defined(__ARM_FEATURE_MATMUL_INT8)
#define GANGLION_ARM_PART(part) i8mm_##part
#define GANGLION_ARM_ROWS(part) dotprod_##part
#elif defined(__ARM_FEATURE_DOTPROD)
#define GANGLION_ARM_PART(part) dotprod_##part
#define GANGLION_ARM_ROWS(part) dotprod_##part
#else
#define GANGLION_ARM_PART(part) neon_##part
#define GANGLION_ARM_ROWS(part) neon_##part
#endif

namespace ganglion::kernels {

GANGLION_INLINE uint8x16_t load_u8(const void* p) {
  return vld1q_u8(static_cast<const uint8_t*>(p));
}
GANGLION_INLINE int8x16_t load_s8(const void* p) {
  return vld1q_s8(static_cast<const int8_t*>(p));
}
GANGLION_INLINE int8x16_t as_signed(uint8x16_t v) {
  return vreinterpretq_s8_u8(v);
}

GANGLION_INLINE uint16_t load_u16(const uint8_t* p) {
  uint16_t value;
  memcpy(&value, p, sizeof value);
  return value;
}
GANGLION_INLINE uint32_t load_u32(const uint8_t* p) {
  uint32_t value;
  memcpy(&value, p, sizeof value);
  return value;
}
GANGLION_INLINE float load_f32(const uint8_t* p) {
  float value;
  memcpy(&value, p, sizeof value);
  return value;
}

/// Four half-precision numbers, given as their bits.
GANGLION_INLINE float32x4_t from_halves(uint16x4_t bits) {
  return vcvt_f32_f16(vreinterpret_f16_u16(bits));
}
GANGLION_INLINE uint16x4_t to_halves(float32x4_t v) {
  return vreinterpret_u16_f16(vcvt_f16_f32(v));
}
GANGLION_INLINE float half_scalar(const uint8_t* p) {
  return vgetq_lane_f32(from_halves(vdup_n_u16(load_u16(p))), 0);
}

/// Lane i all ones where i < count.
GANGLION_INLINE uint32x4_t lanes_below(size_t count) {
  const uint32_t index[4] = {0, 1, 2, 3};
  return vcltq_u32(vld1q_u32(index), vdupq_n_u32(static_cast<uint32_t>(count)));
}

/// Adds the products of 16 pairs of bytes, four to a lane or in another split: only the sum of lanes counts.
/// Two products fit into 16 bits, as activations are at least -127: 2 * 128 * 127 < 2^15.
GANGLION_INLINE int32x4_t dot_16(int32x4_t acc, int8x16_t a, int8x16_t b) {
#if defined(__ARM_FEATURE_DOTPROD)
  return vdotq_s32(acc, a, b);
#else
  return vpadalq_s16(acc, vmlal_high_s8(vmull_s8(vget_low_s8(a), vget_low_s8(b)), a, b));
#endif
}

/// Lane k of the result is the sum of the lanes of v[k]. Integer sums are exact, so the order is free.
GANGLION_INLINE int32x4_t sum_each_4(const int32x4_t* v) {
  return vpaddq_s32(vpaddq_s32(v[0], v[1]), vpaddq_s32(v[2], v[3]));
}

/// The contract's tree over 8 lanes: i with i + 4, i + 2, i + 1.
GANGLION_INLINE float tree_8(float32x4_t low, float32x4_t high) {
  const float32x4_t four = vaddq_f32(low, high);
  return vpadds_f32(vadd_f32(vget_low_f32(four), vget_high_f32(four)));
}

/// The tree over 16 lanes.
GANGLION_INLINE float tree_16(const float32x4_t* v) {
  return tree_8(vaddq_f32(v[0], v[2]), vaddq_f32(v[1], v[3]));
}

/// How far ahead of its use a stream of weights is asked for; as on x86, not measured on ARM.
static constexpr size_t kPrefetchBytes = 3072;

/// Asks for `kBytes` from p on. Addresses past the end of a buffer are harmless.
template <size_t kBytes>
GANGLION_INLINE void prefetch(const uint8_t* p) {
  for (size_t i = 0; i < kBytes; i += 64) __builtin_prefetch(p + i);
}

/// What is asked for while row r is computed for `tokens`: null or a row. Scattered rows are too short for
/// the hardware prefetcher to notice, and the next one would come too late.
GANGLION_INLINE const uint8_t* ahead_of(const MatmulArgs& args, size_t r, int tokens) {
  if (args.scattered) return r + 2 < args.rows + args.more ? args.scattered[r + 2] : nullptr;
  return tokens == 1 ? args.row(r) + kPrefetchBytes : nullptr;
}

/// One activation row of an integer form.
struct ActivationRow {
  const int8_t* q;
  const float* scales;
  const int16_t* sums;
};

GANGLION_INLINE ActivationRow activation_row(const uint8_t* row, ActivationForm form, size_t n) {
  const size_t scales_at = (n + 63) / 64 * 64;
  const size_t scales = form == ActivationForm::kQ8Block32 ? n / 32 : n / 256;
  return {reinterpret_cast<const int8_t*>(row), reinterpret_cast<const float*>(row + scales_at),
          reinterpret_cast<const int16_t*>(row + scales_at + (scales * sizeof(float) + 63) / 64 * 64)};
}

/// Rows that are gone through before the next tile of tokens, so that weights come from memory once and both
/// a tile's activations and these rows stay in the second-level cache.
static constexpr size_t kRowsAtOnce = 32;

/// Calls Kernel::row<T>(args, row, first activation row, out of that row and token) for all rows, in tiles of
/// up to four tokens that share the unpacked weights.
template <class Kernel>
GANGLION_INLINE void for_each_tile(const MatmulArgs& args) {
  for (size_t r0 = 0; r0 < args.rows; r0 += kRowsAtOnce) {
    const size_t r1 = args.rows - r0 < kRowsAtOnce ? args.rows : r0 + kRowsAtOnce;
    for (size_t t = 0; t < args.tokens; t += 4) {
      const uint8_t* x = args.x + t * args.x_stride;
      for (size_t r = r0; r < r1; ++r) {
        float* out = args.out + t * args.out_stride + r;
        switch (args.tokens - t) {
          case 1:
            Kernel::template row<1>(args, r, x, out);
            break;
          case 2:
            Kernel::template row<2>(args, r, x, out);
            break;
          case 3:
            Kernel::template row<3>(args, r, x, out);
            break;
          default:
            Kernel::template row<4>(args, r, x, out);
        }
      }
    }
  }
}

}  // namespace ganglion::kernels

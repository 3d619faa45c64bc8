// NEON int8 quantisation of a block of floats; same bits as reference/quantize.h.
#pragma once

#include "kernels/arm_neon/common.h"
#include "kernels/vector_constants.h"

namespace ganglion::kernels {

GANGLION_INLINE float bits_to_float(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

/// q[i] = round(x[i] * (127 / max|x|)); returns max|x| / 127, with the exceptions in kernel_table.h.
template <size_t kBlock>
GANGLION_INLINE float quantize_block(const float* x, int8_t* q) {
  uint32x4_t max_bits = vdupq_n_u32(0);  // As integers, magnitudes order like floats, with NaN on top.
  for (size_t i = 0; i < kBlock; i += 4) {
    max_bits = vmaxq_u32(max_bits, vreinterpretq_u32_f32(vabsq_f32(vld1q_f32(x + i))));
  }
  const uint32_t bits = vmaxvq_u32(max_bits);
  const float max = bits_to_float(bits);
  if (bits >= 0x7f800000u || max < kQuantFloor) {
    memset(q, 0, kBlock);
    return bits >= 0x7f800000u ? bits_to_float(0x7fc00000u) : 0.0f;
  }
  const float32x4_t inverse = vdupq_n_f32(127.0f / max);
  for (size_t i = 0; i < kBlock; i += 16) {
    int32x4_t part[4];
    for (size_t k = 0; k < 4; ++k) part[k] = vcvtnq_s32_f32(vmulq_f32(vld1q_f32(x + i + 4 * k), inverse));
    const int16x8_t low = vcombine_s16(vmovn_s32(part[0]), vmovn_s32(part[1]));
    const int16x8_t high = vcombine_s16(vmovn_s32(part[2]), vmovn_s32(part[3]));
    vst1q_s8(q + i, vcombine_s8(vmovn_s16(low), vmovn_s16(high)));
  }
  return max / 127.0f;
}

}  // namespace ganglion::kernels

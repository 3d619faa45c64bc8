// Bit-level helpers of the scalar kernels: unaligned reads and half-precision conversion.
// Functions are static, not inline: each object of kernels/ exports one symbol and no weak ones.
#pragma once

#include <cstdint>
#include <cstring>

namespace ganglion::kernels {

[[maybe_unused]] static uint16_t read_u16(const uint8_t* p) {
  uint16_t value;
  memcpy(&value, p, sizeof value);
  return value;
}

[[maybe_unused]] static uint32_t read_u32(const uint8_t* p) {
  uint32_t value;
  memcpy(&value, p, sizeof value);
  return value;
}

[[maybe_unused]] static uint32_t float_bits(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

[[maybe_unused]] static float float_from_bits(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

/// IEEE binary16 to binary32, exact.
[[maybe_unused]] static float half_to_float(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
  const uint32_t exponent = (half >> 10) & 31u;
  const uint32_t mantissa = half & 0x3ffu;
  if (exponent == 31) return float_from_bits(sign | 0x7f800000u | (mantissa << 13));
  if (exponent != 0) return float_from_bits(sign | ((exponent + 112) << 23) | (mantissa << 13));
  const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
  return float_from_bits(sign | float_bits(magnitude));
}

/// Nearest binary16, ties to even, infinity from 65520 on; NaN keeps its upper payload and becomes quiet.
[[maybe_unused]] static uint16_t float_to_half(float value) {
  const uint32_t bits = float_bits(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  uint32_t half;
  if (magnitude > 0x7f800000u) {
    half = 0x7e00u | ((magnitude >> 13) & 0x3ffu);
  } else if (magnitude >= 0x477ff000u) {
    half = 0x7c00u;
  } else if (magnitude < 0x38800000u) {
    // The unit in the last place of 0.5 is that of a subnormal half, so this addition rounds as needed.
    half = float_bits(float_from_bits(magnitude) + 0.5f) - 0x3f000000u;
  } else {
    half = ((magnitude + 0xfffu + ((magnitude >> 13) & 1u)) >> 13) - (112u << 10);
  }
  return static_cast<uint16_t>(sign | half);
}

[[maybe_unused]] static float bfloat_to_float(uint16_t bits) {
  return float_from_bits(static_cast<uint32_t>(bits) << 16);
}

}  // namespace ganglion::kernels

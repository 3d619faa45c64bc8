// Scalar int8 quantisation of a block of floats, for activations and Q8_0 KV rows.
#pragma once

#include <cstddef>

#include "kernels/reference/scalar.h"
#include "kernels/vector_constants.h"

namespace ganglion::kernels {

/// Rounds |value| < 2^22 to the nearest integer, ties to even.
[[maybe_unused]] static int32_t round_to_int(float value) {
  return static_cast<int32_t>(float_bits(value + kRoundMagic) - float_bits(kRoundMagic));
}

/// q[i] = round(x[i] * (127 / max|x|)); returns max|x| / 127, with the exceptions in kernel_table.h.
[[maybe_unused]] static float quantize_block(const float* x, size_t n, int8_t* q) {
  uint32_t max_bits = 0;  // As integers, magnitudes order like floats, with infinity and NaN on top.
  for (size_t i = 0; i < n; ++i) {
    const uint32_t bits = float_bits(x[i]) & 0x7fffffffu;
    max_bits = bits > max_bits ? bits : max_bits;
  }
  const float max = float_from_bits(max_bits);
  if (max_bits >= 0x7f800000u || max < kQuantFloor) {
    memset(q, 0, n);
    return max_bits >= 0x7f800000u ? float_from_bits(0x7fc00000u) : 0.0f;
  }
  const float inverse = 127.0f / max;
  for (size_t i = 0; i < n; ++i) q[i] = static_cast<int8_t>(round_to_int(x[i] * inverse));
  return max / 127.0f;
}

}  // namespace ganglion::kernels

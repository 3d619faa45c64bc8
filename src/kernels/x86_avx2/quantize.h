// AVX2 int8 quantisation of a block of floats; same bits as reference/quantize.h.
#pragma once

#include "kernels/vector_constants.h"
#include "kernels/x86_avx2/common.h"

namespace ganglion::kernels {

GANGLION_INLINE float bits_to_float(int bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

/// q[i] = round(x[i] * (127 / max|x|)); returns max|x| / 127, with the exceptions in kernel_table.h.
template <size_t kBlock>
GANGLION_INLINE float quantize_block(const float* x, int8_t* q) {
  const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
  __m256i max_bits = _mm256_setzero_si256();  // As integers, magnitudes order like floats, with NaN on top.
  for (size_t i = 0; i < kBlock; i += 8) {
    max_bits = _mm256_max_epi32(max_bits, _mm256_and_si256(load_256(x + i), magnitude));
  }
  __m128i top = _mm_max_epi32(_mm256_castsi256_si128(max_bits), _mm256_extracti128_si256(max_bits, 1));
  top = _mm_max_epi32(top, _mm_unpackhi_epi64(top, top));
  top = _mm_max_epi32(top, _mm_shuffle_epi32(top, 1));
  const int bits = _mm_cvtsi128_si32(top);
  const float max = bits_to_float(bits);
  if (bits >= 0x7f800000 || max < kQuantFloor) {
    memset(q, 0, kBlock);
    return bits >= 0x7f800000 ? bits_to_float(0x7fc00000) : 0.0f;
  }
  const __m256 inverse = _mm256_set1_ps(127.0f / max);
  for (size_t i = 0; i < kBlock; i += 32) {
    __m256i part[4];
    for (size_t k = 0; k < 4; ++k) {
      part[k] = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + i + 8 * k), inverse));
    }
    // Packing works in halves; the permutation puts its groups of four back in order.
    const __m256i packed =
        _mm256_packs_epi16(_mm256_packs_epi32(part[0], part[1]), _mm256_packs_epi32(part[2], part[3]));
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(q + i), _mm256_permutevar8x32_epi32(packed, order));
  }
  return max / 127.0f;
}

}  // namespace ganglion::kernels

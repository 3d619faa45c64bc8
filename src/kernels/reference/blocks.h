// Unpacks one block of the types that have an integer dot product, for the scalar kernels.
// Source of the layouts: GGUF/ggml type definitions; checked by tests/fixtures/quants.
#pragma once

#include "kernels/reference/scalar.h"

namespace ganglion::kernels {

/// A block of 32: value[i] = scale * q[i], plus min for the types that have one.
struct SmallBlock {
  float scale;
  float min;
  int8_t q[32];
};

/// A block of 256 in 16 groups: value[i] = scale * sub_scale[i / 16] * q[i] - min_scale * sub_min[i / 16].
/// Types whose groups are 32 long have each sub-scale twice.
struct SuperBlock {
  float scale;
  float min_scale;
  int8_t q[256];
  int8_t sub_scale[16];
  uint8_t sub_min[16];
};

/// The nonlinear 4-bit codebook of IQ4_NL and IQ4_XS.
static const int8_t kIq4Values[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                      1,    13,   25,  38,  53,  69,  89,  113};
/// Twice the E2M1 values of MXFP4 and NVFP4 (OCP microscaling formats, v1.0).
static const int8_t kFp4Values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

/// Half of the power of two that an E8M0 exponent stands for (the codebook above is doubled).
[[maybe_unused]] static float e8m0_half(uint8_t exponent) {
  const uint32_t e = exponent;
  return float_from_bits(e < 2 ? 0x00200000u << e : (e - 1) << 23);
}

/// The low nibbles of 16 bytes, then the high ones.
static void unpack_nibbles(const uint8_t* qs, uint8_t* out) {
  for (int i = 0; i < 16; ++i) {
    out[i] = qs[i] & 15;
    out[i + 16] = static_cast<uint8_t>(qs[i] >> 4);
  }
}

static void unpack_offset(const uint8_t* qs, const uint8_t* high_bits, int offset, int8_t* out) {
  uint8_t low[32];
  unpack_nibbles(qs, low);
  const uint32_t high = high_bits ? read_u32(high_bits) : 0;
  for (int i = 0; i < 32; ++i) {
    const int bit = static_cast<int>((high >> i) & 1u);
    out[i] = static_cast<int8_t>((low[i] | bit << 4) - offset);
  }
}

static void unpack_codebook(const uint8_t* qs, const int8_t* values, int8_t* out) {
  uint8_t low[32];
  unpack_nibbles(qs, low);
  for (int i = 0; i < 32; ++i) out[i] = values[low[i]];
}

[[maybe_unused]] static void unpack_q4_0(const uint8_t* p, SmallBlock* block) {
  block->scale = half_to_float(read_u16(p));
  unpack_offset(p + 2, nullptr, 8, block->q);
}

[[maybe_unused]] static void unpack_q4_1(const uint8_t* p, SmallBlock* block) {
  block->scale = half_to_float(read_u16(p));
  block->min = half_to_float(read_u16(p + 2));
  unpack_offset(p + 4, nullptr, 0, block->q);
}

[[maybe_unused]] static void unpack_q5_0(const uint8_t* p, SmallBlock* block) {
  block->scale = half_to_float(read_u16(p));
  unpack_offset(p + 6, p + 2, 16, block->q);
}

[[maybe_unused]] static void unpack_q5_1(const uint8_t* p, SmallBlock* block) {
  block->scale = half_to_float(read_u16(p));
  block->min = half_to_float(read_u16(p + 2));
  unpack_offset(p + 8, p + 4, 0, block->q);
}

[[maybe_unused]] static void unpack_q8_0(const uint8_t* p, SmallBlock* block) {
  block->scale = half_to_float(read_u16(p));
  memcpy(block->q, p + 2, 32);
}

[[maybe_unused]] static void unpack_iq4_nl(const uint8_t* p, SmallBlock* block) {
  block->scale = half_to_float(read_u16(p));
  unpack_codebook(p + 2, kIq4Values, block->q);
}

[[maybe_unused]] static void unpack_mxfp4(const uint8_t* p, SmallBlock* block) {
  block->scale = e8m0_half(p[0]);
  unpack_codebook(p + 1, kFp4Values, block->q);
}

/// Codes of 2 bits, 128 elements from 32 bytes: byte k holds elements k, k + 32, k + 64, k + 96.
static int two_bits(const uint8_t* qs, int i) {
  return (qs[32 * (i / 128) + i % 32] >> (2 * (i / 32 % 4))) & 3;
}

[[maybe_unused]] static void unpack_q2_k(const uint8_t* p, SuperBlock* block) {
  block->scale = half_to_float(read_u16(p + 80));
  block->min_scale = half_to_float(read_u16(p + 82));
  for (int g = 0; g < 16; ++g) {
    block->sub_scale[g] = static_cast<int8_t>(p[g] & 15);
    block->sub_min[g] = static_cast<uint8_t>(p[g] >> 4);
  }
  for (int i = 0; i < 256; ++i) block->q[i] = static_cast<int8_t>(two_bits(p + 16, i));
}

[[maybe_unused]] static void unpack_q3_k(const uint8_t* p, SuperBlock* block) {
  const uint8_t* high = p;
  const uint8_t* scales = p + 96;
  block->scale = half_to_float(read_u16(p + 108));
  for (int g = 0; g < 16; ++g) {
    const int low = (scales[g % 8] >> (4 * (g / 8))) & 15;
    const int top = (scales[8 + g % 4] >> (2 * (g / 4))) & 3;
    block->sub_scale[g] = static_cast<int8_t>((low | top << 4) - 32);
  }
  for (int i = 0; i < 256; ++i) {
    const int bit = (high[i % 32] >> (i / 32)) & 1;
    block->q[i] = static_cast<int8_t>((two_bits(p + 32, i) | bit << 2) - 4);
  }
}

/// The 12 bytes of Q4_K and Q5_K: eight scales and eight minima of 6 bits, for groups of 32.
static void unpack_k_scales(const uint8_t* s, SuperBlock* block) {
  for (int j = 0; j < 8; ++j) {
    int scale = s[j % 4] & 63;
    int min = s[4 + j % 4] & 63;
    if (j >= 4) {
      scale = (s[4 + j] & 15) | (s[j - 4] >> 6) << 4;
      min = (s[4 + j] >> 4) | (s[j] >> 6) << 4;
    }
    for (int g = 2 * j; g < 2 * j + 2; ++g) {
      block->sub_scale[g] = static_cast<int8_t>(scale);
      block->sub_min[g] = static_cast<uint8_t>(min);
    }
  }
}

/// Codes of 4 bits, 64 elements from 32 bytes: byte k holds elements k and k + 32.
static int four_bits(const uint8_t* qs, int i) {
  return (qs[32 * (i / 64) + i % 32] >> (4 * (i / 32 % 2))) & 15;
}

[[maybe_unused]] static void unpack_q4_k(const uint8_t* p, SuperBlock* block) {
  block->scale = half_to_float(read_u16(p));
  block->min_scale = half_to_float(read_u16(p + 2));
  unpack_k_scales(p + 4, block);
  for (int i = 0; i < 256; ++i) block->q[i] = static_cast<int8_t>(four_bits(p + 16, i));
}

[[maybe_unused]] static void unpack_q5_k(const uint8_t* p, SuperBlock* block) {
  block->scale = half_to_float(read_u16(p));
  block->min_scale = half_to_float(read_u16(p + 2));
  unpack_k_scales(p + 4, block);
  for (int i = 0; i < 256; ++i) {
    const int bit = (p[16 + i % 32] >> (i / 32)) & 1;
    block->q[i] = static_cast<int8_t>(four_bits(p + 48, i) | bit << 4);
  }
}

[[maybe_unused]] static void unpack_q6_k(const uint8_t* p, SuperBlock* block) {
  block->scale = half_to_float(read_u16(p + 208));
  memcpy(block->sub_scale, p + 192, 16);
  for (int i = 0; i < 256; ++i) {
    const int low = (p[64 * (i / 128) + i % 64] >> (4 * (i / 64 % 2))) & 15;
    block->q[i] = static_cast<int8_t>((low | two_bits(p + 128, i) << 4) - 32);
  }
}

[[maybe_unused]] static void unpack_iq4_xs(const uint8_t* p, SuperBlock* block) {
  const int high = read_u16(p + 2);
  block->scale = half_to_float(read_u16(p));
  for (int j = 0; j < 8; ++j) {
    const int low = (p[4 + j / 2] >> (4 * (j % 2))) & 15;
    const int scale = (low | ((high >> (2 * j)) & 3) << 4) - 32;
    block->sub_scale[2 * j] = block->sub_scale[2 * j + 1] = static_cast<int8_t>(scale);
    unpack_codebook(p + 8 + 16 * j, kIq4Values, block->q + 32 * j);
  }
}

}  // namespace ganglion::kernels

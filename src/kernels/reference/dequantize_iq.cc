// Scalar dequantisation of the IQ1, IQ2 and IQ3 types, whose codes name 8 or 4 elements in a codebook.
// Source of the layouts: GGUF/ggml type definitions; checked by tests/fixtures/quants.
#include "kernels/reference/grids.h"
#include "kernels/reference/reference.h"
#include "kernels/reference/scalar.h"

namespace ganglion::kernels {
namespace {

const float kIq2Values[4] = {8, 25, 43, 0};
const float kIq3XxsValues[8] = {4, 12, 20, 28, 36, 44, 52, 62};
const float kIq3SValues[8] = {1, 3, 5, 7, 9, 11, 13, 15};
const float kIq1Delta = 0.125f;

/// Eight signs from seven bits: the eighth makes their number even.
uint32_t even_signs(uint32_t bits) {
  bits &= 127;
  uint32_t parity = bits ^ (bits >> 4);
  parity ^= parity >> 2;
  parity ^= parity >> 1;
  return bits | (parity & 1) << 7;
}

float sign_of(uint32_t signs, size_t i) {
  return (signs >> i) & 1 ? -1.0f : 1.0f;
}

void put_iq2(uint32_t entry, uint32_t signs, float scale, float* out) {
  for (size_t i = 0; i < 8; ++i) out[i] = scale * kIq2Values[(entry >> (2 * i)) & 3] * sign_of(signs, i);
}

void put_iq3(uint32_t entry, const float* values, uint32_t signs, float scale, float* out) {
  for (size_t i = 0; i < 4; ++i) out[i] = scale * values[(entry >> (4 * i)) & 7] * sign_of(signs, i);
}

void put_iq1(uint32_t entry, float delta, float scale, float* out) {
  for (size_t i = 0; i < 8; ++i) {
    out[i] = scale * (static_cast<float>(static_cast<int>((entry >> (2 * i)) & 3) - 1) + delta);
  }
}

/// d * (1/2 + s) * factor, in this order.
float half_step_scale(float d, uint32_t s, float factor) {
  return d * (0.5f + static_cast<float>(s)) * factor;
}

/// Nibble k of a byte array.
uint32_t nibble(const uint8_t* p, size_t k) {
  return (p[k / 2] >> (4 * (k % 2))) & 15u;
}

void dequantize_iq2_xxs(const uint8_t* row, size_t n, float* out) {
  const uint16_t* grid = iq_grids().iq2_xxs;
  for (size_t b = 0; b < n / 256; ++b, row += 66) {
    const float d = half_to_float(read_u16(row));
    for (size_t j = 0; j < 8; ++j) {
      const uint8_t* index = row + 2 + 8 * j;
      const uint32_t rest = read_u32(index + 4);
      const float scale = half_step_scale(d, rest >> 28, 0.25f);
      for (size_t k = 0; k < 4; ++k, out += 8)
        put_iq2(grid[index[k]], even_signs(rest >> (7 * k)), scale, out);
    }
  }
}

void dequantize_iq2_xs(const uint8_t* row, size_t n, float* out) {
  const uint16_t* grid = iq_grids().iq2_xs;
  for (size_t b = 0; b < n / 256; ++b, row += 74) {
    const float d = half_to_float(read_u16(row));
    for (size_t k = 0; k < 32; ++k, out += 8) {
      const uint32_t code = read_u16(row + 2 + 2 * k);
      const float scale = half_step_scale(d, nibble(row + 66, k / 2), 0.25f);
      put_iq2(grid[code & 511], even_signs(code >> 9), scale, out);
    }
  }
}

void dequantize_iq2_s(const uint8_t* row, size_t n, float* out) {
  const uint16_t* grid = iq_grids().iq2_s;
  for (size_t b = 0; b < n / 256; ++b, row += 82) {
    const float d = half_to_float(read_u16(row));
    for (size_t k = 0; k < 32; ++k, out += 8) {
      const uint32_t high = (row[66 + k / 4] >> (2 * (k % 4))) & 3u;
      const float scale = half_step_scale(d, nibble(row + 74, k / 2), 0.25f);
      put_iq2(grid[row[2 + k] | high << 8], row[34 + k], scale, out);
    }
  }
}

void dequantize_iq3_xxs(const uint8_t* row, size_t n, float* out) {
  const uint16_t* grid = iq_grids().iq3_xxs;
  for (size_t b = 0; b < n / 256; ++b, row += 98) {
    const float d = half_to_float(read_u16(row));
    for (size_t k = 0; k < 32; ++k, out += 8) {
      const uint32_t rest = read_u32(row + 66 + 4 * (k / 4));
      const float scale = half_step_scale(d, rest >> 28, 0.5f);
      const uint32_t signs = even_signs(rest >> (7 * (k % 4)));
      put_iq3(grid[row[2 + 2 * k]], kIq3XxsValues, signs, scale, out);
      put_iq3(grid[row[3 + 2 * k]], kIq3XxsValues, signs >> 4, scale, out + 4);
    }
  }
}

void dequantize_iq3_s(const uint8_t* row, size_t n, float* out) {
  const uint16_t* grid = iq_grids().iq3_s;
  for (size_t b = 0; b < n / 256; ++b, row += 110) {
    const float d = half_to_float(read_u16(row));
    for (size_t k = 0; k < 64; ++k, out += 4) {
      const uint32_t high = (row[66 + k / 8] >> (k % 8)) & 1u;
      const float scale = d * static_cast<float>(1 + 2 * nibble(row + 106, k / 8));
      const uint32_t signs = row[74 + k / 2] >> (4 * (k % 2));
      put_iq3(grid[row[2 + k] | high << 8], kIq3SValues, signs, scale, out);
    }
  }
}

void dequantize_iq1_s(const uint8_t* row, size_t n, float* out) {
  const uint16_t* grid = iq_grids().iq1;
  for (size_t b = 0; b < n / 256; ++b, row += 50) {
    const float d = half_to_float(read_u16(row));
    for (size_t k = 0; k < 32; ++k, out += 8) {
      const uint32_t high = read_u16(row + 34 + 2 * (k / 4));
      const float scale = d * static_cast<float>(2 * ((high >> 12) & 7) + 1);
      const uint32_t index = row[2 + k] | ((high >> (3 * (k % 4))) & 7) << 8;
      put_iq1(grid[index], high & 0x8000 ? -kIq1Delta : kIq1Delta, scale, out);
    }
  }
}

void dequantize_iq1_m(const uint8_t* row, size_t n, float* out) {
  const uint16_t* grid = iq_grids().iq1;
  for (size_t b = 0; b < n / 256; ++b, row += 56) {
    const uint8_t* scales = row + 48;
    uint32_t packed = 0;  // The half scale is spread over the top nibbles of the four scale words.
    for (size_t w = 0; w < 4; ++w) packed |= static_cast<uint32_t>(read_u16(scales + 2 * w) >> 12) << (4 * w);
    const float d = half_to_float(static_cast<uint16_t>(packed));
    for (size_t k = 0; k < 32; ++k, out += 8) {
      const uint32_t word = read_u16(scales + 2 * (k / 8));
      const float scale = d * static_cast<float>(2 * ((word >> (3 * (k / 2 % 4))) & 7) + 1);
      const uint32_t high = nibble(row + 32, k);
      put_iq1(grid[row[k] | (high & 7) << 8], high & 8 ? -kIq1Delta : kIq1Delta, scale, out);
    }
  }
}

struct Table {
  DequantizeFn of[kTypeSlots];
};

constexpr Table make_table() {
  Table table{};
  const auto set = [&](TensorType type, DequantizeFn fn) { table.of[static_cast<size_t>(type)] = fn; };
  set(TensorType::kIQ2_XXS, dequantize_iq2_xxs);
  set(TensorType::kIQ2_XS, dequantize_iq2_xs);
  set(TensorType::kIQ2_S, dequantize_iq2_s);
  set(TensorType::kIQ3_XXS, dequantize_iq3_xxs);
  set(TensorType::kIQ3_S, dequantize_iq3_s);
  set(TensorType::kIQ1_S, dequantize_iq1_s);
  set(TensorType::kIQ1_M, dequantize_iq1_m);
  return table;
}

constexpr Table kTable = make_table();

}  // namespace

const DequantizeFn* reference_dequantize_iq() {
  return kTable.of;
}

}  // namespace ganglion::kernels

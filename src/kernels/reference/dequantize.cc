// Scalar dequantisation of the plain, small-block, K, ternary and FP4 types. The IQ types with codebooks of
// several elements are in dequantize_iq.cc. Source of the layouts: GGUF/ggml type definitions.
#include "kernels/reference/blocks.h"
#include "kernels/reference/reference.h"

namespace ganglion::kernels {
namespace {

void dequantize_f32(const uint8_t* row, size_t n, float* out) {
  memcpy(out, row, n * sizeof(float));
}

void dequantize_f16(const uint8_t* row, size_t n, float* out) {
  for (size_t i = 0; i < n; ++i) out[i] = half_to_float(read_u16(row + 2 * i));
}

void dequantize_bf16(const uint8_t* row, size_t n, float* out) {
  for (size_t i = 0; i < n; ++i) out[i] = bfloat_to_float(read_u16(row + 2 * i));
}

template <auto kUnpack, size_t kBytes, bool kHasMin>
void dequantize_small(const uint8_t* row, size_t n, float* out) {
  for (size_t b = 0; b < n / 32; ++b) {
    SmallBlock block;
    kUnpack(row + b * kBytes, &block);
    for (size_t i = 0; i < 32; ++i) {
      const float value = block.scale * static_cast<float>(block.q[i]);
      out[32 * b + i] = kHasMin ? value + block.min : value;
    }
  }
}

template <auto kUnpack, size_t kBytes, bool kHasMin>
void dequantize_super(const uint8_t* row, size_t n, float* out) {
  for (size_t b = 0; b < n / 256; ++b) {
    SuperBlock block;
    kUnpack(row + b * kBytes, &block);
    for (size_t i = 0; i < 256; ++i) {
      const float scale = block.scale * static_cast<float>(block.sub_scale[i / 16]);
      const float value = scale * static_cast<float>(block.q[i]);
      out[256 * b + i] =
          kHasMin ? value - block.min_scale * static_cast<float>(block.sub_min[i / 16]) : value;
    }
  }
}

/// The digit of a base-3 fraction of 256ths: the code byte times 3^digit, modulo 256, holds it in front.
float ternary_digit(uint8_t code, uint8_t power) {
  const uint32_t shifted = static_cast<uint8_t>(code * power);
  return static_cast<float>(static_cast<int>((shifted * 3) >> 8) - 1);
}

void dequantize_tq1_0(const uint8_t* row, size_t n, float* out) {
  static const uint8_t kPowers[5] = {1, 3, 9, 27, 81};
  // Three runs of codes: 32 bytes and 16 bytes of five digits, 4 bytes of four digits; digits vary slowest.
  static const struct { size_t offset, bytes, digits; } kRuns[3] = {{0, 32, 5}, {32, 16, 5}, {48, 4, 4}};
  for (size_t b = 0; b < n / 256; ++b, row += 54) {
    const float scale = half_to_float(read_u16(row + 52));
    for (const auto& run : kRuns) {
      for (size_t d = 0; d < run.digits; ++d) {
        for (size_t i = 0; i < run.bytes; ++i)
          *out++ = scale * ternary_digit(row[run.offset + i], kPowers[d]);
      }
    }
  }
}

void dequantize_tq2_0(const uint8_t* row, size_t n, float* out) {
  for (size_t b = 0; b < n / 256; ++b, row += 66, out += 256) {
    const float scale = half_to_float(read_u16(row + 64));
    for (int i = 0; i < 256; ++i) out[i] = scale * static_cast<float>(two_bits(row, i) - 1);
  }
}

/// Half of an unsigned E4M3 number, as the FP4 codebook is doubled. 0x7f, its NaN, is 0; bit 7 is unused.
float ue4m3_half(uint8_t code) {
  if (code == 0 || code == 0x7f) return 0.0f;
  const uint32_t exponent = (code >> 3) & 15u;
  const uint32_t mantissa = code & 7u;
  if (exponent == 0) return static_cast<float>(mantissa) * 0x1p-10f;
  return static_cast<float>(8 + mantissa) * float_from_bits((exponent + 127 - 11) << 23);
}

void dequantize_nvfp4(const uint8_t* row, size_t n, float* out) {
  for (size_t b = 0; b < n / 64; ++b, row += 36) {
    for (size_t sub = 0; sub < 4; ++sub) {
      const float scale = ue4m3_half(row[sub]);
      const uint8_t* codes = row + 4 + 8 * sub;
      for (size_t i = 0; i < 8; ++i) *out++ = scale * static_cast<float>(kFp4Values[codes[i] & 15]);
      for (size_t i = 0; i < 8; ++i) *out++ = scale * static_cast<float>(kFp4Values[codes[i] >> 4]);
    }
  }
}

struct Table {
  DequantizeFn of[kTypeSlots];
};

constexpr Table make_table() {
  Table table{};
  const auto set = [&](TensorType type, DequantizeFn fn) { table.of[static_cast<size_t>(type)] = fn; };
  set(TensorType::kF32, dequantize_f32);
  set(TensorType::kF16, dequantize_f16);
  set(TensorType::kBF16, dequantize_bf16);
  set(TensorType::kQ4_0, dequantize_small<unpack_q4_0, 18, false>);
  set(TensorType::kQ4_1, dequantize_small<unpack_q4_1, 20, true>);
  set(TensorType::kQ5_0, dequantize_small<unpack_q5_0, 22, false>);
  set(TensorType::kQ5_1, dequantize_small<unpack_q5_1, 24, true>);
  set(TensorType::kQ8_0, dequantize_small<unpack_q8_0, 34, false>);
  set(TensorType::kIQ4_NL, dequantize_small<unpack_iq4_nl, 18, false>);
  set(TensorType::kMXFP4, dequantize_small<unpack_mxfp4, 17, false>);
  set(TensorType::kQ2_K, dequantize_super<unpack_q2_k, 84, true>);
  set(TensorType::kQ3_K, dequantize_super<unpack_q3_k, 110, false>);
  set(TensorType::kQ4_K, dequantize_super<unpack_q4_k, 144, true>);
  set(TensorType::kQ5_K, dequantize_super<unpack_q5_k, 176, true>);
  set(TensorType::kQ6_K, dequantize_super<unpack_q6_k, 210, false>);
  set(TensorType::kIQ4_XS, dequantize_super<unpack_iq4_xs, 136, false>);
  set(TensorType::kTQ1_0, dequantize_tq1_0);
  set(TensorType::kTQ2_0, dequantize_tq2_0);
  set(TensorType::kNVFP4, dequantize_nvfp4);
  return table;
}

constexpr Table kTable = make_table();

}  // namespace

const DequantizeFn* reference_dequantize() {
  return kTable.of;
}

}  // namespace ganglion::kernels

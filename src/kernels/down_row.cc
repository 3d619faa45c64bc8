// Quantisation of transposed down rows, for packing. Layouts: docs/pack_format.md.
#include "kernels/kernel_table.h"
#include "kernels/reference/quantize.h"

namespace ganglion::kernels {
namespace {

// The element of largest magnitude gets the code -2^(bits-1), the only one without a positive twin.
uint16_t choose_scale(const float* x, int lowest, float* inverse) {
  float most = 0;
  for (size_t i = 0; i < 32; ++i) most = __builtin_fabsf(x[i]) > __builtin_fabsf(most) ? x[i] : most;
  const uint16_t half = float_to_half(most / static_cast<float>(lowest));
  const float scale = half_to_float(half);
  *inverse = scale != 0 ? 1 / scale : 0;
  return half;
}

int code_of(float x, float inverse, int lowest) {
  const float scaled = x * inverse;
  const int code = __builtin_fabsf(scaled) < 1000.0F ? round_to_int(scaled) : 0;
  return code < lowest ? lowest : code > -lowest - 1 ? -lowest - 1 : code;
}

void quantize_q4(const float* x, uint8_t* block) {
  float inverse;
  const uint16_t scale = choose_scale(x, -8, &inverse);
  memcpy(block, &scale, 2);
  for (size_t i = 0; i < 16; ++i) {
    const int low = code_of(x[i], inverse, -8) + 8, high = code_of(x[i + 16], inverse, -8) + 8;
    block[2 + i] = static_cast<uint8_t>(low | high << 4);
  }
}

void quantize_q6(const float* x, uint8_t* block) {
  float inverse;
  const uint16_t scale = choose_scale(x, -32, &inverse);
  memcpy(block, &scale, 2);
  memset(block + 2, 0, 24);
  for (size_t i = 0; i < 32; ++i) {
    const int code = code_of(x[i], inverse, -32) + 32;
    uint8_t& nibbles = block[2 + i % 16];
    nibbles = static_cast<uint8_t>(nibbles | (code & 15) << (i < 16 ? 0 : 4));
    uint8_t& high = block[18 + i % 8];
    high = static_cast<uint8_t>(high | (code >> 4) << (2 * (i / 8)));
  }
}

void quantize_q8(const float* x, uint8_t* block) {
  float inverse;
  const uint16_t scale = choose_scale(x, -128, &inverse);
  memcpy(block, &scale, 2);
  for (size_t i = 0; i < 32; ++i) block[2 + i] = static_cast<uint8_t>(code_of(x[i], inverse, -128));
}

}  // namespace

std::span<const std::string_view, kDownTypes> down_type_names() {
  static constexpr std::string_view kNames[kDownTypes] = {"q4", "q6", "q8", "f16", "f32"};
  return kNames;
}

std::span<const std::string_view, kKvTypes> kv_type_names() {
  static constexpr std::string_view kNames[kKvTypes] = {"f32", "f16", "q8_0"};
  return kNames;
}

std::optional<KvType> kv_type_named(std::string_view name) {
  for (size_t type = 0; type < kKvTypes; ++type) {
    if (kv_type_names()[type] == name) return static_cast<KvType>(type);
  }
  return std::nullopt;
}

size_t down_row_bytes(DownType type, size_t n) {
  constexpr size_t kBlockBytes[kDownTypes] = {18, 26, 34, 64, 128};
  return n / 32 * kBlockBytes[static_cast<size_t>(type)];
}

void quantize_down_row(DownType type, const float* x, size_t n, uint8_t* row) {
  const size_t bytes = down_row_bytes(type, 32);
  for (size_t b = 0; b < n / 32; ++b, x += 32, row += bytes) {
    switch (type) {
      case DownType::kQ4:
        quantize_q4(x, row);
        break;
      case DownType::kQ6:
        quantize_q6(x, row);
        break;
      case DownType::kQ8:
        quantize_q8(x, row);
        break;
      case DownType::kF16:
        for (size_t i = 0; i < 32; ++i) {
          const uint16_t half = float_to_half(x[i]);
          memcpy(row + 2 * i, &half, 2);
        }
        break;
      case DownType::kF32:
        memcpy(row, x, 32 * sizeof(float));
    }
  }
}

}  // namespace ganglion::kernels

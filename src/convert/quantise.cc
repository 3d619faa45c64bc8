#include "convert/quantise.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/check.h"

namespace ganglion::convert {

using base::TensorType;

namespace {

constexpr size_t kBlock = 32;
constexpr float kLargestHalf = 65504;
constexpr float kLargestBfloat = 3.3895314e38F;

void put_u16(uint16_t value, uint8_t* out) {
  std::memcpy(out, &value, sizeof value);
}

uint16_t float_to_bfloat(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  return static_cast<uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);  // Ties to even.
}

// 2 bytes scale, 32 signed bytes.
void quantise_q8_0(const float* in, uint8_t* out) {
  float largest = 0;
  for (size_t i = 0; i < kBlock; ++i) largest = std::max(largest, std::abs(in[i]));
  const float scale = largest / 127;
  const float inverse = scale > 0 ? 1 / scale : 0;
  put_u16(float_to_half(scale), out);
  for (size_t i = 0; i < kBlock; ++i) {
    const float step = std::clamp(std::round(in[i] * inverse), -127.0F, 127.0F);
    out[2 + i] = static_cast<uint8_t>(static_cast<int8_t>(step));
  }
}

// 2 bytes scale, 16 bytes: value i in the low half of byte i, value i + 16 in its high half, each 8 too high.
void quantise_q4_0(const float* in, uint8_t* out) {
  float extreme = 0;
  for (size_t i = 0; i < kBlock; ++i) {
    if (std::abs(in[i]) > std::abs(extreme)) extreme = in[i];
  }
  const float scale = extreme / -8;
  const float inverse = scale != 0 ? 1 / scale : 0;
  put_u16(float_to_half(scale), out);
  const auto step = [&](float value) {
    return static_cast<uint8_t>(std::clamp(std::floor(value * inverse + 8.5F), 0.0F, 15.0F));
  };
  for (size_t i = 0; i < kBlock / 2; ++i) {
    out[2 + i] = static_cast<uint8_t>(step(in[i]) | step(in[i + kBlock / 2]) << 4);
  }
}

}  // namespace

uint16_t float_to_half(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
  const uint32_t magnitude = bits & 0x7FFFFFFF;
  if (magnitude > 0x7F800000) return static_cast<uint16_t>(sign | 0x7E00);  // Not a number.
  if (magnitude >= 0x477FF000) return static_cast<uint16_t>(sign | 0x7C00);
  if (magnitude < 0x38800000) {  // Below 2^-14: steps of 2^-24.
    const float steps = std::bit_cast<float>(magnitude) * 16777216.0F;
    return static_cast<uint16_t>(sign | static_cast<uint16_t>(std::nearbyint(steps)));
  }
  const uint32_t rounded = magnitude + 0xFFF + (magnitude >> 13 & 1);
  return static_cast<uint16_t>(sign | static_cast<uint16_t>((rounded >> 13) - (112U << 10)));
}

float half_to_float(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16;
  const uint32_t exponent = bits >> 10 & 31;
  const uint32_t mantissa = bits & 0x3FF;
  if (exponent == 0) {
    const float magnitude = static_cast<float>(mantissa) / 16777216.0F;
    return sign != 0 ? -magnitude : magnitude;
  }
  const uint32_t wide = exponent == 31 ? 255 : exponent + 112;
  return std::bit_cast<float>(sign | wide << 23 | mantissa << 13);
}

void to_floats(TensorType type, const uint8_t* in, std::span<float> out) {
  if (type == TensorType::kF32) {
    std::memcpy(out.data(), in, out.size_bytes());
    return;
  }
  GANGLION_CHECK(type == TensorType::kF16 || type == TensorType::kBF16);
  for (size_t i = 0; i < out.size(); ++i) {
    uint16_t bits = 0;
    std::memcpy(&bits, in + 2 * i, sizeof bits);
    out[i] = type == TensorType::kF16 ? half_to_float(bits)
                                      : std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
  }
}

bool try_from_floats(TensorType type, std::span<const float> in, uint8_t* out) {
  float limit = type == TensorType::kF16 ? kLargestHalf : kLargestBfloat;
  if (type == TensorType::kF32) limit = std::numeric_limits<float>::max();
  if (type == TensorType::kQ8_0) limit = kLargestHalf * 127;
  if (type == TensorType::kQ4_0) limit = kLargestHalf * 8;
  const bool fits = std::all_of(in.begin(), in.end(), [&](float x) { return std::abs(x) <= limit; });
  if (!fits) return false;
  const size_t blocks = in.size() / base::tensor_type_info(type).block_elems;
  switch (type) {
    case TensorType::kF32:
      std::memcpy(out, in.data(), in.size_bytes());
      return true;
    case TensorType::kF16:
      for (size_t i = 0; i < blocks; ++i) put_u16(float_to_half(in[i]), out + 2 * i);
      return true;
    case TensorType::kBF16:
      for (size_t i = 0; i < blocks; ++i) put_u16(float_to_bfloat(in[i]), out + 2 * i);
      return true;
    case TensorType::kQ8_0:
      for (size_t i = 0; i < blocks; ++i) quantise_q8_0(in.data() + i * kBlock, out + i * 34);
      return true;
    case TensorType::kQ4_0:
      for (size_t i = 0; i < blocks; ++i) quantise_q4_0(in.data() + i * kBlock, out + i * 18);
      return true;
    default:
      GANGLION_CHECK(false);
      return false;
  }
}

}  // namespace ganglion::convert

#include "kernels/random_blocks.h"

namespace ganglion::kernels {
namespace {

using base::TensorType;

/// Where half-precision scales lie in a block; -1 for none.
struct ScaleOffsets {
  int first;
  int second;
};

ScaleOffsets scale_offsets(TensorType type) {
  switch (type) {
    case TensorType::kQ4_1:
    case TensorType::kQ5_1:
    case TensorType::kQ4_K:
    case TensorType::kQ5_K:
      return {0, 2};
    case TensorType::kQ2_K:
      return {80, 82};
    case TensorType::kQ3_K:
      return {108, -1};
    case TensorType::kQ6_K:
      return {208, -1};
    case TensorType::kTQ1_0:
      return {52, -1};
    case TensorType::kTQ2_0:
      return {64, -1};
    case TensorType::kIQ1_M:  // The top of the half lies in the top nibble of the last scale word.
    case TensorType::kMXFP4:
    case TensorType::kNVFP4:
      return {-1, -1};
    default:
      return {0, -1};
  }
}

/// Keeps sign and mantissa; the exponent becomes 2^-7 or 2^-6.
void tame_half(uint8_t* p) {
  p[1] = static_cast<uint8_t>((p[1] & 0x87) | 0x20);
}

void tame_block(TensorType type, uint8_t* block) {
  if (type == TensorType::kF32) {
    block[3] = static_cast<uint8_t>((block[3] & 0x81) | 0x3e);
  } else if (type == TensorType::kBF16) {
    block[1] = static_cast<uint8_t>((block[1] & 0x81) | 0x3e);
  } else if (type == TensorType::kF16) {
    block[1] = static_cast<uint8_t>(block[1] & 0xbf);  // Below 2, subnormal numbers included.
  } else if (type == TensorType::kIQ1_M) {
    block[55] = static_cast<uint8_t>((block[55] & 0x8f) | 0x20);
  } else if (type == TensorType::kMXFP4) {
    block[0] = static_cast<uint8_t>(112 + block[0] % 16);
  }
  const ScaleOffsets offsets = scale_offsets(type);
  if (type == TensorType::kF32 || type == TensorType::kF16 || type == TensorType::kBF16) return;
  if (offsets.first >= 0) tame_half(block + offsets.first);
  if (offsets.second >= 0) tame_half(block + offsets.second);
}

}  // namespace

uint64_t next_random(uint64_t* state) {
  *state ^= *state >> 12;
  *state ^= *state << 25;
  *state ^= *state >> 27;
  return *state * 0x2545f4914f6cdd1dull;
}

void fill_random_blocks(TensorType type, size_t elems, uint64_t* state, uint8_t* out) {
  const base::TensorTypeInfo& info = base::tensor_type_info(type);
  for (size_t b = 0; b < elems / info.block_elems; ++b, out += info.block_bytes) {
    for (size_t i = 0; i < info.block_bytes; ++i) out[i] = static_cast<uint8_t>(next_random(state) >> 40);
    tame_block(type, out);
  }
}

void fill_random_floats(size_t n, uint64_t* state, float* out) {
  for (size_t i = 0; i < n; ++i) {
    float sum = 0;
    for (int k = 0; k < 4; ++k) sum += static_cast<float>(next_random(state) >> 40) * 0x1p-24f - 0.5f;
    out[i] = sum * (i % 61 == 60 ? 17.0f : 1.7f);
  }
}

}  // namespace ganglion::kernels

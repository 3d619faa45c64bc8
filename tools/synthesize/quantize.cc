#include "quantize.h"

#include "base/check.h"
#include "kernels/kernel_table.h"

namespace ganglion::synthesize {

using base::TensorType;
using kernels::KvType;

namespace {

constexpr size_t kBlock = 32;
constexpr size_t kLanes = 8;

void store(KvType type, const float* values, size_t n, uint8_t* out) {
  kernels::available_tables()[0]->kv_store[static_cast<size_t>(type)](values, n, out);
}

// The value of largest magnitude, with its sign. Lanes, so that compilers make vectors of it.
float extreme(const float* x) {
  float high[kLanes] = {};
  float low[kLanes] = {};
  for (size_t i = 0; i < kBlock; i += kLanes) {
    for (size_t k = 0; k < kLanes; ++k) {
      high[k] = x[i + k] > high[k] ? x[i + k] : high[k];
      low[k] = x[i + k] < low[k] ? x[i + k] : low[k];
    }
  }
  for (size_t k = 1; k < kLanes; ++k) {
    high[0] = high[k] > high[0] ? high[k] : high[0];
    low[0] = low[k] < low[0] ? low[k] : low[0];
  }
  return high[0] > -low[0] ? high[0] : low[0];
}

// A block: half-precision scale d, then 16 bytes of codes 0 to 15 that mean d * (code - 8), elements 0 to 15
// in the low nibbles. The extreme value becomes code 0, so that the code of the wider side is used.
void encode_q4_0(const float* values, size_t n, uint8_t* out) {
  for (size_t b = 0; b < n / kBlock; ++b, values += kBlock, out += 2 + kBlock / 2) {
    const float scale = extreme(values) / -8;
    const float inverse = scale == 0 ? 0 : 1 / scale;
    store(KvType::kF16, &scale, 1, out);
    int32_t codes[kBlock];
    for (size_t i = 0; i < kBlock; ++i) {
      const float code = values[i] * inverse + 8.5F;
      codes[i] = static_cast<int32_t>(code < 15.0F ? code : 15.0F);
    }
    for (size_t i = 0; i < kBlock / 2; ++i)
      out[2 + i] = static_cast<uint8_t>(codes[i] | codes[i + kBlock / 2] << 4);
  }
}

}  // namespace

bool can_encode(TensorType type) {
  return type == TensorType::kF32 || type == TensorType::kF16 || type == TensorType::kQ8_0 ||
         type == TensorType::kQ4_0;
}

void encode_row(TensorType type, const float* values, size_t n, uint8_t* out) {
  GANGLION_CHECK(can_encode(type));
  if (type == TensorType::kQ4_0) return encode_q4_0(values, n, out);
  const KvType kind = type == TensorType::kF32   ? KvType::kF32
                      : type == TensorType::kF16 ? KvType::kF16
                                                 : KvType::kQ8_0;
  store(kind, values, n, out);
}

}  // namespace ganglion::synthesize

// Scalar kernels of the KV cache: dot with keys, weighted sum of values, storing a row.
#include <cmath>

#include "kernels/reference/quantize.h"
#include "kernels/reference/reference.h"

namespace ganglion::kernels {
namespace {

float load_f32(const uint8_t* row, size_t i) {
  return float_from_bits(read_u32(row + 4 * i));
}
float load_f16(const uint8_t* row, size_t i) {
  return half_to_float(read_u16(row + 2 * i));
}
float load_q8_0(const uint8_t* row, size_t i) {
  const uint8_t* block = row + 34 * (i / 32);
  return half_to_float(read_u16(block)) * static_cast<float>(static_cast<int8_t>(block[2 + i % 32]));
}

template <auto kLoad>
void kv_dot(const float* q, const uint8_t* k, size_t stride, size_t count, size_t n, float* scores) {
  for (size_t j = 0; j < count; ++j) {
    float acc[16] = {};
    for (size_t i = 0; i < n; ++i) acc[i % 16] = std::fmaf(kLoad(k + j * stride, i), q[i], acc[i % 16]);
    for (size_t width = 8; width > 0; width /= 2) {
      for (size_t i = 0; i < width; ++i) acc[i] += acc[i + width];
    }
    scores[j] = acc[0];
  }
}

template <auto kLoad>
void kv_axpy(const float* w, const uint8_t* v, size_t stride, size_t count, size_t n, float* out) {
  for (size_t j = 0; j < count; ++j) {
    for (size_t i = 0; i < n; ++i) out[i] = std::fmaf(w[j], kLoad(v + j * stride, i), out[i]);
  }
}

void store_f32(const float* x, size_t n, uint8_t* row) {
  memcpy(row, x, n * sizeof(float));
}

void store_f16(const float* x, size_t n, uint8_t* row) {
  for (size_t i = 0; i < n; ++i) {
    const uint16_t half = float_to_half(x[i]);
    memcpy(row + 2 * i, &half, 2);
  }
}

void store_q8_0(const float* x, size_t n, uint8_t* row) {
  for (size_t b = 0; b < n / 32; ++b, row += 34) {
    int8_t q[32];
    const uint16_t scale = float_to_half(quantize_block(x + 32 * b, 32, q));
    memcpy(row, &scale, 2);
    memcpy(row + 2, q, 32);
  }
}

const KvKernels kKernels = {
    {kv_dot<load_f32>, kv_dot<load_f16>, kv_dot<load_q8_0>},
    {kv_axpy<load_f32>, kv_axpy<load_f16>, kv_axpy<load_q8_0>},
    {store_f32, store_f16, store_q8_0},
};

}  // namespace

const KvKernels& reference_kv() {
  return kKernels;
}

}  // namespace ganglion::kernels

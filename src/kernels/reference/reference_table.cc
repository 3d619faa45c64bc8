// The scalar table and its vector operations. Slow; what the other tables are compared with, bit for bit.
#include <cmath>

#include "kernels/reference/quantize.h"
#include "kernels/reference/reference.h"

namespace ganglion::kernels {
namespace {

void store_activation(ActivationForm form, const float* x, size_t n, uint8_t* row) {
  memset(row, 0, activation_row_bytes(form, n));
  if (form == ActivationForm::kF32) {
    memcpy(row, x, n * sizeof(float));
    return;
  }
  const size_t block = form == ActivationForm::kQ8Block32 ? 32 : 256;
  const size_t group = form == ActivationForm::kQ8Block32 ? 32 : 16;
  int8_t* q = reinterpret_cast<int8_t*>(row);
  float* scales = reinterpret_cast<float*>(row + activation_scales_offset(n));
  int16_t* sums = reinterpret_cast<int16_t*>(row + activation_sums_offset(form, n));
  for (size_t b = 0; b < n / block; ++b) scales[b] = quantize_block(x + b * block, block, q + b * block);
  for (size_t g = 0; g < n / group; ++g) {
    int sum = 0;
    for (size_t i = 0; i < group; ++i) sum += q[g * group + i];
    sums[g] = static_cast<int16_t>(sum);
  }
}

void rms_norm(const float* x, const float* weight, size_t n, float eps, float* out) {
  double acc[16] = {};
  for (size_t i = 0; i < n; ++i) acc[i % 16] += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  for (size_t width = 8; width > 0; width /= 2) {
    for (size_t i = 0; i < width; ++i) acc[i] += acc[i + width];
  }
  const double mean = acc[0] / static_cast<double>(n);
  const float scale = static_cast<float>(1.0 / __builtin_sqrt(mean + static_cast<double>(eps)));
  for (size_t i = 0; i < n; ++i) out[i] = weight ? x[i] * scale * weight[i] : x[i] * scale;
}

/// exp of any float. 2^n is applied in two steps, so that results round once into the subnormal range.
float exp_of(float x) {
  x = kExpLowest > x ? kExpLowest : x;  // In this form, NaN stays NaN.
  x = kExpHighest < x ? kExpHighest : x;
  const float shifted = std::fmaf(x, kLog2E, kRoundMagic);
  const float rounded = shifted - kRoundMagic;
  const int32_t exponent = static_cast<int32_t>(float_bits(shifted) - float_bits(kRoundMagic));
  float r = std::fmaf(-rounded, kLn2High, x);
  r = std::fmaf(-rounded, kLn2Low, r);
  float p = std::fmaf(kExpC4, r, kExpC3);
  p = std::fmaf(p, r, kExpC2);
  p = std::fmaf(p, r, kExpC1);
  p = std::fmaf(p, r, kExpC0);
  p = std::fmaf(p, r * r, r) + 1.0f;
  const int32_t half = exponent >> 1;
  const float first = float_from_bits(static_cast<uint32_t>(half + 127) << 23);
  const float second =
      float_from_bits((static_cast<uint32_t>(exponent) - static_cast<uint32_t>(half) + 127u) << 23);
  return p * first * second;
}

/// 1 / (1 + exp(-x)) without overflow: e / (1 + e) for negative x.
float sigmoid(float x) {
  const float e = exp_of(-__builtin_fabsf(x));
  return (x < 0.0f ? e : 1.0f) / (1.0f + e);
}

float exp_sum(float* x, size_t n, float max_value) {
  float acc[16] = {};
  for (size_t i = 0; i < n; ++i) {
    x[i] = exp_of(x[i] - max_value);
    acc[i % 16] += x[i];
  }
  for (size_t width = 8; width > 0; width /= 2) {
    for (size_t i = 0; i < width; ++i) acc[i] += acc[i + width];
  }
  return acc[0];
}

float relu(float x) {
  return 0.0f > x ? 0.0f : x;
}

float silu_gate(float gate, float up) {
  return gate * sigmoid(gate) * up;
}

float gelu_gate(float gate, float up) {
  const float cubic = std::fmaf(kGeluCubic * (gate * gate), gate, gate);
  return gate * sigmoid(kGeluScale * cubic) * up;
}

float relu_gate(float gate, float up) {
  return relu(gate) * up;
}

float drelu_gate(float gate, float up) {
  return relu(gate) * relu(up);
}

float swiglu_oai_gate(float gate, float up) {
  gate = kSwigluLimit < gate ? kSwigluLimit : gate;
  up = kSwigluLimit < up ? kSwigluLimit : up;
  up = -kSwigluLimit > up ? -kSwigluLimit : up;
  return gate * sigmoid(kSwigluSlope * gate) * (up + 1.0f);
}

template <auto kGate>
void gated(float* gate, const float* up, size_t n) {
  for (size_t i = 0; i < n; ++i) gate[i] = kGate(gate[i], up[i]);
}

void add_scaled(const float* x, float scale, size_t n, float* out) {
  for (size_t i = 0; i < n; ++i) out[i] = std::fmaf(scale, x[i], out[i]);
}

KernelTable make_table() {
  KernelTable table{};
  table.name = "reference";
  for (size_t slot = 0; slot < kTypeSlots; ++slot) {
    table.matmul[slot] = reference_matmul()[slot];
    table.dequantize[slot] =
        reference_dequantize()[slot] ? reference_dequantize()[slot] : reference_dequantize_iq()[slot];
  }
  table.store_activation = store_activation;
  for (size_t kind = 0; kind < kKvTypes; ++kind) {
    table.kv_dot[kind] = reference_kv().dot[kind];
    table.kv_axpy[kind] = reference_kv().axpy[kind];
    table.kv_store[kind] = reference_kv().store[kind];
  }
  for (size_t type = 0; type < kDownTypes; ++type) table.down_axpy[type] = reference_down()[type];
  table.rms_norm = rms_norm;
  table.exp_sum = exp_sum;
  const auto set = [&](Activation kind, auto fn) { table.gated_activation[static_cast<size_t>(kind)] = fn; };
  set(Activation::kSilu, gated<silu_gate>);
  set(Activation::kGeluTanh, gated<gelu_gate>);
  set(Activation::kRelu, gated<relu_gate>);
  set(Activation::kDRelu, gated<drelu_gate>);
  set(Activation::kSwigluOai, gated<swiglu_oai_gate>);
  table.add_scaled = add_scaled;
  return table;
}

}  // namespace

const KernelTable& reference_table() {
  static const KernelTable table = make_table();
  return table;
}

}  // namespace ganglion::kernels

// NEON vector operations: activation rows, normalisation, softmax and gates. Operation by operation the same
// as reference/reference_table.cc, so the same bits; ends of vectors go through a padded copy.
#include "kernels/arm_neon/common.h"
#include "kernels/arm_neon/quantize.h"
#include "kernels/vector_constants.h"

namespace ganglion::kernels {
namespace {

void zero_between(uint8_t* row, size_t begin, size_t end) {
  memset(row + begin, 0, end - begin);
}

void store_q8_block32(const float* x, size_t n, uint8_t* row) {
  const size_t blocks = n / 32;
  const size_t scales_at = activation_scales_offset(n);
  const size_t sums_at = activation_sums_offset(ActivationForm::kQ8Block32, n);
  int8_t* q = reinterpret_cast<int8_t*>(row);
  float* scales = reinterpret_cast<float*>(row + scales_at);
  int16_t* sums = reinterpret_cast<int16_t*>(row + sums_at);
  for (size_t b = 0; b < blocks; ++b) {
    scales[b] = quantize_block<32>(x + 32 * b, q + 32 * b);
    const int16x8_t pairs = vpaddlq_s8(vld1q_s8(q + 32 * b));
    sums[b] = vaddvq_s16(vpadalq_s8(pairs, vld1q_s8(q + 32 * b + 16)));
  }
  zero_between(row, n, scales_at);
  zero_between(row, scales_at + blocks * sizeof(float), sums_at);
  zero_between(row, sums_at + blocks * sizeof(int16_t), activation_row_bytes(ActivationForm::kQ8Block32, n));
}

void store_q8_block256(const float* x, size_t n, uint8_t* row) {
  const size_t supers = n / 256;
  const size_t scales_at = activation_scales_offset(n);
  const size_t sums_at = activation_sums_offset(ActivationForm::kQ8Block256, n);
  int8_t* q = reinterpret_cast<int8_t*>(row);
  float* scales = reinterpret_cast<float*>(row + scales_at);
  int16_t* sums = reinterpret_cast<int16_t*>(row + sums_at);
  for (size_t b = 0; b < supers; ++b) scales[b] = quantize_block<256>(x + 256 * b, q + 256 * b);
  for (size_t g = 0; g < n / 16; ++g) sums[g] = vaddlvq_s8(vld1q_s8(q + 16 * g));
  zero_between(row, scales_at + supers * sizeof(float), sums_at);
  zero_between(row, sums_at + n / 16 * sizeof(int16_t), activation_row_bytes(ActivationForm::kQ8Block256, n));
}

void store_activation(ActivationForm form, const float* x, size_t n, uint8_t* row) {
  switch (form) {
    case ActivationForm::kQ8Block32:
      return store_q8_block32(x, n, row);
    case ActivationForm::kQ8Block256:
      return store_q8_block256(x, n, row);
    case ActivationForm::kF32:
      break;
  }
  memcpy(row, x, n * sizeof(float));
  zero_between(row, n * sizeof(float), activation_row_bytes(form, n));
}

void rms_norm(const float* x, const float* weight, size_t n, float eps, float* out) {
  // A square of a float is exact in double, so fma and multiply-then-add give the same bits.
  float64x2_t acc[8];
  for (size_t k = 0; k < 8; ++k) acc[k] = vdupq_n_f64(0);
  size_t i = 0;
  for (; i + 16 <= n; i += 16) {
    for (size_t k = 0; k < 8; ++k) {
      const float64x2_t value = vcvt_f64_f32(vld1_f32(x + i + 2 * k));
      acc[k] = vfmaq_f64(acc[k], value, value);
    }
  }
  double lanes[16];
  for (size_t k = 0; k < 8; ++k) vst1q_f64(lanes + 2 * k, acc[k]);
  for (size_t e = i; e < n; ++e) lanes[e - i] += static_cast<double>(x[e]) * static_cast<double>(x[e]);
  for (size_t width = 8; width > 0; width /= 2) {
    for (size_t k = 0; k < width; ++k) lanes[k] += lanes[k + width];
  }
  const double mean = lanes[0] / static_cast<double>(n);
  const float scale = static_cast<float>(1.0 / __builtin_sqrt(mean + static_cast<double>(eps)));
  for (i = 0; i + 4 <= n; i += 4) {
    float32x4_t value = vmulq_n_f32(vld1q_f32(x + i), scale);
    if (weight) value = vmulq_f32(value, vld1q_f32(weight + i));
    vst1q_f32(out + i, value);
  }
  for (; i < n; ++i) out[i] = weight ? x[i] * scale * weight[i] : x[i] * scale;
}

/// The larger (smaller) one; x where it is NaN, and of two zeros x.
GANGLION_INLINE float32x4_t at_least(float low, float32x4_t x) {
  const float32x4_t bound = vdupq_n_f32(low);
  return vbslq_f32(vcgtq_f32(bound, x), bound, x);
}
GANGLION_INLINE float32x4_t at_most(float high, float32x4_t x) {
  const float32x4_t bound = vdupq_n_f32(high);
  return vbslq_f32(vcltq_f32(bound, x), bound, x);
}

/// exp of any float, as exp_of in the reference.
GANGLION_INLINE float32x4_t exp_4(float32x4_t x) {
  x = at_most(kExpHighest, at_least(kExpLowest, x));
  const float32x4_t magic = vdupq_n_f32(kRoundMagic);
  const float32x4_t shifted = vfmaq_f32(magic, x, vdupq_n_f32(kLog2E));
  const float32x4_t rounded = vsubq_f32(shifted, magic);
  const int32x4_t exponent = vsubq_s32(vreinterpretq_s32_f32(shifted), vreinterpretq_s32_f32(magic));
  float32x4_t r = vfmsq_f32(x, rounded, vdupq_n_f32(kLn2High));
  r = vfmsq_f32(r, rounded, vdupq_n_f32(kLn2Low));
  float32x4_t p = vfmaq_f32(vdupq_n_f32(kExpC3), vdupq_n_f32(kExpC4), r);
  p = vfmaq_f32(vdupq_n_f32(kExpC2), p, r);
  p = vfmaq_f32(vdupq_n_f32(kExpC1), p, r);
  p = vfmaq_f32(vdupq_n_f32(kExpC0), p, r);
  p = vaddq_f32(vfmaq_f32(r, p, vmulq_f32(r, r)), vdupq_n_f32(1.0f));
  const int32x4_t half = vshrq_n_s32(exponent, 1), bias = vdupq_n_s32(127);
  const int32x4_t first = vshlq_n_s32(vaddq_s32(half, bias), 23);
  const int32x4_t second = vshlq_n_s32(vaddq_s32(vsubq_s32(exponent, half), bias), 23);
  return vmulq_f32(vmulq_f32(p, vreinterpretq_f32_s32(first)), vreinterpretq_f32_s32(second));
}

GANGLION_INLINE float32x4_t sigmoid_4(float32x4_t x) {
  const float32x4_t one = vdupq_n_f32(1.0f);
  const float32x4_t e = exp_4(vnegq_f32(vabsq_f32(x)));
  return vdivq_f32(vbslq_f32(vcltzq_f32(x), e, one), vaddq_f32(one, e));
}

float exp_sum(float* x, size_t n, float max_value) {
  const float32x4_t max = vdupq_n_f32(max_value);
  float32x4_t acc[4];
  for (size_t k = 0; k < 4; ++k) acc[k] = vdupq_n_f32(0);
  size_t i = 0;
  for (; i + 16 <= n; i += 16) {
    for (size_t k = 0; k < 4; ++k) {
      const float32x4_t value = exp_4(vsubq_f32(vld1q_f32(x + i + 4 * k), max));
      vst1q_f32(x + i + 4 * k, value);
      acc[k] = vaddq_f32(acc[k], value);
    }
  }
  if (i < n) {
    float values[16] = {};
    float lanes[16];
    memcpy(values, x + i, (n - i) * sizeof(float));
    for (size_t k = 0; k < 4; ++k) {
      vst1q_f32(values + 4 * k, exp_4(vsubq_f32(vld1q_f32(values + 4 * k), max)));
      vst1q_f32(lanes + 4 * k, acc[k]);
    }
    memcpy(x + i, values, (n - i) * sizeof(float));
    for (size_t e = 0; e < n - i; ++e) lanes[e] += values[e];
    for (size_t k = 0; k < 4; ++k) acc[k] = vld1q_f32(lanes + 4 * k);
  }
  return tree_16(acc);
}

struct Silu {
  GANGLION_INLINE float32x4_t apply(float32x4_t gate, float32x4_t up) {
    return vmulq_f32(vmulq_f32(gate, sigmoid_4(gate)), up);
  }
};

struct GeluTanh {
  GANGLION_INLINE float32x4_t apply(float32x4_t gate, float32x4_t up) {
    const float32x4_t square = vmulq_f32(vdupq_n_f32(kGeluCubic), vmulq_f32(gate, gate));
    const float32x4_t cubic = vfmaq_f32(gate, square, gate);
    return vmulq_f32(vmulq_f32(gate, sigmoid_4(vmulq_f32(vdupq_n_f32(kGeluScale), cubic))), up);
  }
};

struct Relu {
  GANGLION_INLINE float32x4_t apply(float32x4_t gate, float32x4_t up) {
    return vmulq_f32(at_least(0, gate), up);
  }
};

struct DRelu {
  GANGLION_INLINE float32x4_t apply(float32x4_t gate, float32x4_t up) {
    return vmulq_f32(at_least(0, gate), at_least(0, up));
  }
};

struct SwigluOai {
  GANGLION_INLINE float32x4_t apply(float32x4_t gate, float32x4_t up) {
    gate = at_most(kSwigluLimit, gate);
    up = at_least(-kSwigluLimit, at_most(kSwigluLimit, up));
    const float32x4_t swish = vmulq_f32(gate, sigmoid_4(vmulq_f32(vdupq_n_f32(kSwigluSlope), gate)));
    return vmulq_f32(swish, vaddq_f32(up, vdupq_n_f32(1.0f)));
  }
};

template <class Gate>
void gated(float* gate, const float* up, size_t n) {
  size_t i = 0;
  for (; i + 4 <= n; i += 4) vst1q_f32(gate + i, Gate::apply(vld1q_f32(gate + i), vld1q_f32(up + i)));
  if (i == n) return;
  float padded_gate[4] = {};
  float padded_up[4] = {};
  memcpy(padded_gate, gate + i, (n - i) * sizeof(float));
  memcpy(padded_up, up + i, (n - i) * sizeof(float));
  vst1q_f32(padded_gate, Gate::apply(vld1q_f32(padded_gate), vld1q_f32(padded_up)));
  memcpy(gate + i, padded_gate, (n - i) * sizeof(float));
}

void add_scaled(const float* x, float scale, size_t n, float* out) {
  size_t i = 0;
  for (; i + 4 <= n; i += 4) vst1q_f32(out + i, vfmaq_n_f32(vld1q_f32(out + i), vld1q_f32(x + i), scale));
  for (; i < n; ++i) out[i] = __builtin_fmaf(scale, x[i], out[i]);
}

}  // namespace

void neon_set_vector(KernelTable* table) {
  table->store_activation = store_activation;
  table->rms_norm = rms_norm;
  table->exp_sum = exp_sum;
  table->gated_activation[static_cast<size_t>(Activation::kSilu)] = gated<Silu>;
  table->gated_activation[static_cast<size_t>(Activation::kGeluTanh)] = gated<GeluTanh>;
  table->gated_activation[static_cast<size_t>(Activation::kRelu)] = gated<Relu>;
  table->gated_activation[static_cast<size_t>(Activation::kDRelu)] = gated<DRelu>;
  table->gated_activation[static_cast<size_t>(Activation::kSwigluOai)] = gated<SwigluOai>;
  table->add_scaled = add_scaled;
}

}  // namespace ganglion::kernels

// AVX2 vector operations: activation rows, normalisation, softmax and gates. Operation by operation the same
// as reference/reference_table.cc, so the same bits; ends of vectors go through a padded copy.
#include "kernels/vector_constants.h"
#include "kernels/x86_avx2/avx2.h"
#include "kernels/x86_avx2/common.h"
#include "kernels/x86_avx2/quantize.h"

namespace ganglion::kernels {
namespace {

void zero_between(uint8_t* row, size_t begin, size_t end) {
  memset(row + begin, 0, end - begin);
}

/// Sums of int8 as four int64: each of 8 values.
GANGLION_INLINE __m256i sum_bytes(const int8_t* q) {
  const __m256i shifted = _mm256_xor_si256(load_256(q), _mm256_set1_epi8(-128));  // q + 128, unsigned.
  return _mm256_sad_epu8(shifted, _mm256_setzero_si256());
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
    const __m256i four = sum_bytes(q + 32 * b);
    const __m128i two = _mm_add_epi64(_mm256_castsi256_si128(four), _mm256_extracti128_si256(four, 1));
    const __m128i one = _mm_add_epi64(two, _mm_unpackhi_epi64(two, two));
    sums[b] = static_cast<int16_t>(_mm_cvtsi128_si32(one) - 32 * 128);
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
  for (size_t g = 0; g < n / 16; g += 2) {
    const __m256i four = sum_bytes(q + 16 * g);
    const __m256i two = _mm256_add_epi64(four, _mm256_unpackhi_epi64(four, four));
    sums[g] = static_cast<int16_t>(_mm256_extract_epi32(two, 0) - 16 * 128);
    sums[g + 1] = static_cast<int16_t>(_mm256_extract_epi32(two, 4) - 16 * 128);
  }
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

GANGLION_INLINE void scale_8(const float* x, const float* weight, size_t i, __m256 scale, float* out) {
  __m256 value = _mm256_mul_ps(_mm256_loadu_ps(x + i), scale);
  if (weight) value = _mm256_mul_ps(value, _mm256_loadu_ps(weight + i));
  _mm256_storeu_ps(out + i, value);
}

void rms_norm(const float* x, const float* weight, size_t n, float eps, float* out) {
  // A square of a float is exact in double, so fma and multiply-then-add give the same bits.
  __m256d acc[4];
  for (size_t k = 0; k < 4; ++k) acc[k] = _mm256_setzero_pd();
  size_t i = 0;
  for (; i + 16 <= n; i += 16) {
    for (size_t k = 0; k < 4; ++k) {
      const __m256d value = _mm256_cvtps_pd(_mm_loadu_ps(x + i + 4 * k));
      acc[k] = _mm256_fmadd_pd(value, value, acc[k]);
    }
  }
  double lanes[16];
  for (size_t k = 0; k < 4; ++k) _mm256_storeu_pd(lanes + 4 * k, acc[k]);
  for (size_t e = i; e < n; ++e) lanes[e - i] += static_cast<double>(x[e]) * static_cast<double>(x[e]);
  for (size_t width = 8; width > 0; width /= 2) {
    for (size_t k = 0; k < width; ++k) lanes[k] += lanes[k + width];
  }
  const double mean = lanes[0] / static_cast<double>(n);
  const float scale = static_cast<float>(1.0 / __builtin_sqrt(mean + static_cast<double>(eps)));
  for (i = 0; i + 8 <= n; i += 8) scale_8(x, weight, i, _mm256_set1_ps(scale), out);
  for (; i < n; ++i) out[i] = weight ? x[i] * scale * weight[i] : x[i] * scale;
}

/// exp of any float, as exp_of in the reference. max and min in this order keep NaN.
GANGLION_INLINE __m256 exp_8(__m256 x) {
  x = _mm256_max_ps(_mm256_set1_ps(kExpLowest), x);
  x = _mm256_min_ps(_mm256_set1_ps(kExpHighest), x);
  const __m256 magic = _mm256_set1_ps(kRoundMagic);
  const __m256 shifted = _mm256_fmadd_ps(x, _mm256_set1_ps(kLog2E), magic);
  const __m256 rounded = _mm256_sub_ps(shifted, magic);
  const __m256i exponent = _mm256_sub_epi32(_mm256_castps_si256(shifted), _mm256_castps_si256(magic));
  __m256 r = _mm256_fnmadd_ps(rounded, _mm256_set1_ps(kLn2High), x);
  r = _mm256_fnmadd_ps(rounded, _mm256_set1_ps(kLn2Low), r);
  __m256 p = _mm256_fmadd_ps(_mm256_set1_ps(kExpC4), r, _mm256_set1_ps(kExpC3));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(kExpC2));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(kExpC1));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(kExpC0));
  p = _mm256_add_ps(_mm256_fmadd_ps(p, _mm256_mul_ps(r, r), r), _mm256_set1_ps(1.0f));
  const __m256i half = _mm256_srai_epi32(exponent, 1);
  const __m256i bias = _mm256_set1_epi32(127);
  const __m256i first = _mm256_slli_epi32(_mm256_add_epi32(half, bias), 23);
  const __m256i second = _mm256_slli_epi32(_mm256_add_epi32(_mm256_sub_epi32(exponent, half), bias), 23);
  return _mm256_mul_ps(_mm256_mul_ps(p, _mm256_castsi256_ps(first)), _mm256_castsi256_ps(second));
}

GANGLION_INLINE __m256 sigmoid_8(__m256 x) {
  const __m256 one = _mm256_set1_ps(1.0f);
  const __m256 e = exp_8(_mm256_or_ps(x, _mm256_set1_ps(-0.0f)));
  const __m256 negative = _mm256_cmp_ps(x, _mm256_setzero_ps(), _CMP_LT_OQ);
  return _mm256_div_ps(_mm256_blendv_ps(one, e, negative), _mm256_add_ps(one, e));
}

float exp_sum(float* x, size_t n, float max_value) {
  const __m256 max = _mm256_set1_ps(max_value);
  __m256 low = _mm256_setzero_ps(), high = _mm256_setzero_ps();
  size_t i = 0;
  for (; i + 16 <= n; i += 16) {
    const __m256 first = exp_8(_mm256_sub_ps(_mm256_loadu_ps(x + i), max));
    const __m256 second = exp_8(_mm256_sub_ps(_mm256_loadu_ps(x + i + 8), max));
    _mm256_storeu_ps(x + i, first);
    _mm256_storeu_ps(x + i + 8, second);
    low = _mm256_add_ps(low, first);
    high = _mm256_add_ps(high, second);
  }
  if (i < n) {
    float values[16] = {};
    float lanes[16];
    memcpy(values, x + i, (n - i) * sizeof(float));
    _mm256_storeu_ps(values, exp_8(_mm256_sub_ps(_mm256_loadu_ps(values), max)));
    _mm256_storeu_ps(values + 8, exp_8(_mm256_sub_ps(_mm256_loadu_ps(values + 8), max)));
    memcpy(x + i, values, (n - i) * sizeof(float));
    _mm256_storeu_ps(lanes, low);
    _mm256_storeu_ps(lanes + 8, high);
    for (size_t e = 0; e < n - i; ++e) lanes[e] += values[e];
    low = _mm256_loadu_ps(lanes);
    high = _mm256_loadu_ps(lanes + 8);
  }
  return tree_16(low, high);
}

/// Keeps NaN: the second operand is returned where the first is not greater.
GANGLION_INLINE __m256 relu_8(__m256 x) {
  return _mm256_max_ps(_mm256_setzero_ps(), x);
}

struct Silu {
  GANGLION_INLINE __m256 apply(__m256 gate, __m256 up) {
    return _mm256_mul_ps(_mm256_mul_ps(gate, sigmoid_8(gate)), up);
  }
};

struct GeluTanh {
  GANGLION_INLINE __m256 apply(__m256 gate, __m256 up) {
    const __m256 square = _mm256_mul_ps(_mm256_set1_ps(kGeluCubic), _mm256_mul_ps(gate, gate));
    const __m256 cubic = _mm256_fmadd_ps(square, gate, gate);
    return _mm256_mul_ps(_mm256_mul_ps(gate, sigmoid_8(_mm256_mul_ps(_mm256_set1_ps(kGeluScale), cubic))),
                         up);
  }
};

struct Relu {
  GANGLION_INLINE __m256 apply(__m256 gate, __m256 up) { return _mm256_mul_ps(relu_8(gate), up); }
};

struct DRelu {
  GANGLION_INLINE __m256 apply(__m256 gate, __m256 up) { return _mm256_mul_ps(relu_8(gate), relu_8(up)); }
};

struct SwigluOai {
  GANGLION_INLINE __m256 apply(__m256 gate, __m256 up) {
    const __m256 limit = _mm256_set1_ps(kSwigluLimit);
    gate = _mm256_min_ps(limit, gate);
    up = _mm256_max_ps(_mm256_set1_ps(-kSwigluLimit), _mm256_min_ps(limit, up));
    const __m256 swish = _mm256_mul_ps(gate, sigmoid_8(_mm256_mul_ps(_mm256_set1_ps(kSwigluSlope), gate)));
    return _mm256_mul_ps(swish, _mm256_add_ps(up, _mm256_set1_ps(1.0f)));
  }
};

template <class Gate>
void gated(float* gate, const float* up, size_t n) {
  size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    _mm256_storeu_ps(gate + i, Gate::apply(_mm256_loadu_ps(gate + i), _mm256_loadu_ps(up + i)));
  }
  if (i == n) return;
  float padded_gate[8] = {};
  float padded_up[8] = {};
  memcpy(padded_gate, gate + i, (n - i) * sizeof(float));
  memcpy(padded_up, up + i, (n - i) * sizeof(float));
  _mm256_storeu_ps(padded_gate, Gate::apply(_mm256_loadu_ps(padded_gate), _mm256_loadu_ps(padded_up)));
  memcpy(gate + i, padded_gate, (n - i) * sizeof(float));
}

void add_scaled(const float* x, float scale, size_t n, float* out) {
  const __m256 factor = _mm256_set1_ps(scale);
  size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    _mm256_storeu_ps(out + i, _mm256_fmadd_ps(factor, _mm256_loadu_ps(x + i), _mm256_loadu_ps(out + i)));
  }
  for (; i < n; ++i) out[i] = __builtin_fmaf(scale, x[i], out[i]);
}

}  // namespace

void avx2_set_vector(KernelTable* table) {
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

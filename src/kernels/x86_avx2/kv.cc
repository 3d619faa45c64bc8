// AVX2 kernels of the KV cache. Same bits as reference/kv.cc. F32 and F16 rows take any n, Q8_0 rows a
// multiple of 32.
#include "kernels/x86_avx2/avx2.h"
#include "kernels/x86_avx2/common.h"
#include "kernels/x86_avx2/quantize.h"

namespace ganglion::kernels {
namespace {

/// 16 elements of a row, from a multiple of 16 on.
struct Sixteen {
  __m256 low;
  __m256 high;
};

struct F32 {
  GANGLION_INLINE Sixteen load_16(const uint8_t* row, size_t i) {
    return {_mm256_castsi256_ps(load_256(row + 4 * i)), _mm256_castsi256_ps(load_256(row + 4 * i + 32))};
  }
  GANGLION_INLINE float load(const uint8_t* row, size_t i) {
    float value;
    memcpy(&value, row + 4 * i, sizeof value);
    return value;
  }
};

struct F16 {
  GANGLION_INLINE Sixteen load_16(const uint8_t* row, size_t i) {
    return {_mm256_cvtph_ps(load_128(row + 2 * i)), _mm256_cvtph_ps(load_128(row + 2 * i + 16))};
  }
  GANGLION_INLINE float load(const uint8_t* row, size_t i) { return half_scalar(row + 2 * i); }
};

struct Q8_0 {
  GANGLION_INLINE Sixteen load_16(const uint8_t* row, size_t i) {
    const uint8_t* block = row + 34 * (i / 32);
    const __m256 scale = _mm256_set1_ps(half_scalar(block));
    const __m128i q = load_128(block + 2 + i % 32);
    return {_mm256_mul_ps(scale, _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(q))),
            _mm256_mul_ps(scale, _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_unpackhi_epi64(q, q))))};
  }
  GANGLION_INLINE float load(const uint8_t* row, size_t i) {
    const uint8_t* block = row + 34 * (i / 32);
    return half_scalar(block) * static_cast<float>(static_cast<int8_t>(block[2 + i % 32]));
  }
};

template <class Type>
void kv_dot(const float* q, const uint8_t* k, size_t stride, size_t count, size_t n, float* scores) {
  for (size_t j = 0; j < count; ++j, k += stride) {
    __m256 low = _mm256_setzero_ps(), high = _mm256_setzero_ps();
    size_t i = 0;
    for (; i + 16 <= n; i += 16) {
      const Sixteen row = Type::load_16(k, i);
      low = _mm256_fmadd_ps(row.low, _mm256_loadu_ps(q + i), low);
      high = _mm256_fmadd_ps(row.high, _mm256_loadu_ps(q + i + 8), high);
    }
    if (i < n) {
      alignas(32) float lanes[16];
      _mm256_store_ps(lanes, low);
      _mm256_store_ps(lanes + 8, high);
      for (size_t e = i; e < n; ++e) lanes[e - i] = __builtin_fmaf(Type::load(k, e), q[e], lanes[e - i]);
      low = _mm256_load_ps(lanes);
      high = _mm256_load_ps(lanes + 8);
    }
    scores[j] = tree_16(low, high);
  }
}

/// 16 * S elements of `out` stay in registers while all rows pass.
template <class Type, size_t S>
GANGLION_INLINE void axpy_columns(const float* w, const uint8_t* v, size_t stride, size_t count, size_t i,
                                  float* out) {
  __m256 low[S], high[S];
  for (size_t s = 0; s < S; ++s) {
    low[s] = _mm256_loadu_ps(out + i + 16 * s);
    high[s] = _mm256_loadu_ps(out + i + 16 * s + 8);
  }
  for (size_t j = 0; j < count; ++j, v += stride) {
    const __m256 weight = _mm256_set1_ps(w[j]);
    for (size_t s = 0; s < S; ++s) {
      const Sixteen row = Type::load_16(v, i + 16 * s);
      low[s] = _mm256_fmadd_ps(weight, row.low, low[s]);
      high[s] = _mm256_fmadd_ps(weight, row.high, high[s]);
    }
  }
  for (size_t s = 0; s < S; ++s) {
    _mm256_storeu_ps(out + i + 16 * s, low[s]);
    _mm256_storeu_ps(out + i + 16 * s + 8, high[s]);
  }
}

template <class Type>
void kv_axpy(const float* w, const uint8_t* v, size_t stride, size_t count, size_t n, float* out) {
  size_t i = 0;
  for (; i + 64 <= n; i += 64) axpy_columns<Type, 4>(w, v, stride, count, i, out);
  for (; i + 16 <= n; i += 16) axpy_columns<Type, 1>(w, v, stride, count, i, out);
  for (; i < n; ++i) {
    for (size_t j = 0; j < count; ++j) out[i] = __builtin_fmaf(w[j], Type::load(v + j * stride, i), out[i]);
  }
}

void store_f32(const float* x, size_t n, uint8_t* row) {
  memcpy(row, x, n * sizeof(float));
}

void store_f16(const float* x, size_t n, uint8_t* row) {
  size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m128i halves = _mm256_cvtps_ph(_mm256_loadu_ps(x + i), _MM_FROUND_TO_NEAREST_INT);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(row + 2 * i), halves);
  }
  for (; i < n; ++i) {
    const uint16_t half = static_cast<uint16_t>(_cvtss_sh(x[i], _MM_FROUND_TO_NEAREST_INT));
    memcpy(row + 2 * i, &half, sizeof half);
  }
}

void store_q8_0(const float* x, size_t n, uint8_t* row) {
  for (size_t b = 0; b < n / 32; ++b, row += 34) {
    const float scale = quantize_block<32>(x + 32 * b, reinterpret_cast<int8_t*>(row + 2));
    const uint16_t half = static_cast<uint16_t>(_cvtss_sh(scale, _MM_FROUND_TO_NEAREST_INT));
    memcpy(row, &half, sizeof half);
  }
}

}  // namespace

void avx2_set_kv(KernelTable* table) {
  const auto set = [&](KvType type, KvDotFn dot, KvAxpyFn axpy, KvStoreFn store) {
    table->kv_dot[static_cast<size_t>(type)] = dot;
    table->kv_axpy[static_cast<size_t>(type)] = axpy;
    table->kv_store[static_cast<size_t>(type)] = store;
  };
  set(KvType::kF32, kv_dot<F32>, kv_axpy<F32>, store_f32);
  set(KvType::kF16, kv_dot<F16>, kv_axpy<F16>, store_f16);
  set(KvType::kQ8_0, kv_dot<Q8_0>, kv_axpy<Q8_0>, store_q8_0);
}

}  // namespace ganglion::kernels

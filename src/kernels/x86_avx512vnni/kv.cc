// AVX-512 kernels of the KV cache: the 16 lanes of the contract are one vector. Same bits as
// reference/kv.cc. Rows of other lengths than multiples of 16 are left to AVX2's.
#include "kernels/x86_avx2/avx2.h"
#include "kernels/x86_avx512vnni/avx512vnni.h"
#include "kernels/x86_avx512vnni/common.h"

namespace ganglion::kernels {
namespace {

struct F32 {
  static constexpr KvType kType = KvType::kF32;
  GANGLION_INLINE __m512 load(const uint8_t* row, size_t i) { return _mm512_loadu_ps(row + 4 * i); }
};

struct F16 {
  static constexpr KvType kType = KvType::kF16;
  GANGLION_INLINE __m512 load(const uint8_t* row, size_t i) { return _mm512_cvtph_ps(load_256(row + 2 * i)); }
};

struct Q8_0 {
  static constexpr KvType kType = KvType::kQ8_0;
  GANGLION_INLINE __m512 load(const uint8_t* row, size_t i) {
    const uint8_t* block = row + 34 * (i / 32);
    return _mm512_mul_ps(_mm512_set1_ps(half_scalar(block)),
                         _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(load_128(block + 2 + i % 32))));
  }
};

GANGLION_INLINE float sum_of_lanes(__m512 acc) {
  return tree_16(_mm512_castps512_ps256(acc), _mm512_extractf32x8_ps(acc, 1));
}

/// `kRows` rows at once: one alone waits for each of its sums.
template <class Type, size_t kRows>
GANGLION_INLINE void dot_rows(const float* q, const uint8_t* k, size_t stride, size_t n, float* scores) {
  __m512 acc[kRows];
  for (size_t j = 0; j < kRows; ++j) acc[j] = _mm512_setzero_ps();
  for (size_t i = 0; i < n; i += 16) {
    const __m512 x = _mm512_loadu_ps(q + i);
    for (size_t j = 0; j < kRows; ++j) acc[j] = _mm512_fmadd_ps(Type::load(k + j * stride, i), x, acc[j]);
  }
  for (size_t j = 0; j < kRows; ++j) scores[j] = sum_of_lanes(acc[j]);
}

template <class Type>
void kv_dot(const float* q, const uint8_t* k, size_t stride, size_t count, size_t n, float* scores) {
  if (n % 16 != 0)
    return avx2_table().kv_dot[static_cast<size_t>(Type::kType)](q, k, stride, count, n, scores);
  size_t j = 0;
  for (; j + 4 <= count; j += 4) dot_rows<Type, 4>(q, k + j * stride, stride, n, scores + j);
  for (; j < count; ++j) dot_rows<Type, 1>(q, k + j * stride, stride, n, scores + j);
}

/// 16 * S elements of `out` stay in registers while all rows pass.
template <class Type, size_t S>
GANGLION_INLINE void axpy_columns(const float* w, const uint8_t* v, size_t stride, size_t count, size_t i,
                                  float* out) {
  __m512 acc[S];
  for (size_t s = 0; s < S; ++s) acc[s] = _mm512_loadu_ps(out + i + 16 * s);
  for (size_t j = 0; j < count; ++j, v += stride) {
    const __m512 weight = _mm512_set1_ps(w[j]);
    for (size_t s = 0; s < S; ++s) acc[s] = _mm512_fmadd_ps(weight, Type::load(v, i + 16 * s), acc[s]);
  }
  for (size_t s = 0; s < S; ++s) _mm512_storeu_ps(out + i + 16 * s, acc[s]);
}

template <class Type>
void kv_axpy(const float* w, const uint8_t* v, size_t stride, size_t count, size_t n, float* out) {
  if (n % 16 != 0) return avx2_table().kv_axpy[static_cast<size_t>(Type::kType)](w, v, stride, count, n, out);
  size_t i = 0;
  for (; i + 128 <= n; i += 128) axpy_columns<Type, 8>(w, v, stride, count, i, out);
  for (; i + 64 <= n; i += 64) axpy_columns<Type, 4>(w, v, stride, count, i, out);
  for (; i < n; i += 16) axpy_columns<Type, 1>(w, v, stride, count, i, out);
}

template <class Type>
void set(KernelTable* table) {
  table->kv_dot[static_cast<size_t>(Type::kType)] = kv_dot<Type>;
  table->kv_axpy[static_cast<size_t>(Type::kType)] = kv_axpy<Type>;
}

}  // namespace

void avx512vnni_set_kv(KernelTable* table) {
  set<F32>(table);
  set<F16>(table);
  set<Q8_0>(table);
}

}  // namespace ganglion::kernels

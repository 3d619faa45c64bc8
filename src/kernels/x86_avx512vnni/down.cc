// AVX-512 kernels of transposed down rows in integer codes. Same bits as reference/down.cc.
#include "kernels/x86_avx512vnni/avx512vnni.h"
#include "kernels/x86_avx512vnni/common.h"

namespace ganglion::kernels {
namespace {

/// A block of 32 as two vectors of floats in their order, before scaling.
struct Block {
  __m512 codes[2];
};

GANGLION_INLINE Block widen(__m256i bytes) {
  return {{_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm256_castsi256_si128(bytes))),
           _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm256_extracti128_si256(bytes, 1)))}};
}

struct Q4 {
  static constexpr size_t kBytes = 18;
  GANGLION_INLINE Block load(const uint8_t* p) {
    const __m512 values = _mm512_setr_ps(-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7);
    // A permutation looks at the low four bits alone.
    const __m512i bytes = _mm512_cvtepu8_epi32(load_128(p + 2));
    return {
        {_mm512_permutexvar_ps(bytes, values), _mm512_permutexvar_ps(_mm512_srli_epi32(bytes, 4), values)}};
  }
};

struct Q6 {
  static constexpr size_t kBytes = 26;
  GANGLION_INLINE Block load(const uint8_t* p) {
    long long bits;
    memcpy(&bits, p + 18, sizeof bits);
    // Quarter k of the block takes bits 2k, 2k + 1 of the eight bytes.
    const __m256i high = _mm256_and_si256(
        _mm256_srlv_epi64(_mm256_set1_epi64x(bits), _mm256_setr_epi64x(0, 2, 4, 6)), _mm256_set1_epi8(3));
    const __m256i codes = _mm256_or_si256(nibbles_16(p + 2), _mm256_slli_epi16(high, 4));
    return widen(_mm256_sub_epi8(codes, _mm256_set1_epi8(32)));
  }
};

struct Q8 {
  static constexpr size_t kBytes = 34;
  GANGLION_INLINE Block load(const uint8_t* p) { return widen(load_256(p + 2)); }
};

/// `kRows` rows pass over `out` at once, in order: each block of `out` is loaded and stored once for all.
template <class Type, size_t kRows>
GANGLION_INLINE void axpy_rows(const DownArgs& args, size_t first) {
  const size_t offset = args.begin / 32 * Type::kBytes;
  const uint8_t* rows[kRows];
  const size_t end = args.count + args.more;
  const uint8_t* later[kRows];  // The rows after these: their bytes are asked for meanwhile.
  for (size_t j = 0; j < kRows; ++j) {
    rows[j] = args.rows[first + j] + offset;
    later[j] = args.rows[first + kRows + j < end ? first + kRows + j : end - 1] + offset;
  }
  for (size_t i = 0; i < args.n; i += 32) {
    __m512 acc[2] = {_mm512_loadu_ps(args.out + i), _mm512_loadu_ps(args.out + i + 16)};
    for (size_t j = 0; j < kRows; ++j) {
      const __m512 scale = _mm512_set1_ps(args.weights[first + j] * half_scalar(rows[j]));
      const Block block = Type::load(rows[j]);
      for (size_t k = 0; k < 2; ++k) acc[k] = _mm512_fmadd_ps(scale, block.codes[k], acc[k]);
      _mm_prefetch(reinterpret_cast<const char*>(later[j]), _MM_HINT_T0);
      rows[j] += Type::kBytes;
      later[j] += Type::kBytes;
    }
    _mm512_storeu_ps(args.out + i, acc[0]);
    _mm512_storeu_ps(args.out + i + 16, acc[1]);
  }
}

template <class Type>
void down_axpy(const DownArgs& args) {
  size_t j = 0;
  for (; j + 4 <= args.count; j += 4) axpy_rows<Type, 4>(args, j);
  for (; j < args.count; ++j) axpy_rows<Type, 1>(args, j);
}

}  // namespace

const DownAxpyFn* avx512vnni_down() {
  static const DownAxpyFn kernels[kDownTypes] = {down_axpy<Q4>, down_axpy<Q6>, down_axpy<Q8>};
  return kernels;
}

}  // namespace ganglion::kernels

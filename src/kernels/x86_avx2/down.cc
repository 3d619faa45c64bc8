// AVX2 kernels of transposed down rows. Same bits as reference/down.cc.
#include "kernels/x86_avx2/avx2.h"
#include "kernels/x86_avx2/common.h"

namespace ganglion::kernels {
namespace {

/// A block of 32 as four vectors of floats, before scaling.
struct Block {
  __m256 codes[4];
};

GANGLION_INLINE Block widen(__m256i bytes) {
  const __m128i low = _mm256_castsi256_si128(bytes), high = _mm256_extracti128_si256(bytes, 1);
  return {{_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(low)),
           _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_unpackhi_epi64(low, low))),
           _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(high)),
           _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_unpackhi_epi64(high, high)))}};
}

struct Q4 {
  static constexpr size_t kBytes = 18;
  GANGLION_INLINE __m256 scale(const uint8_t* p, float w) { return _mm256_set1_ps(w * half_scalar(p)); }
  GANGLION_INLINE Block load(const uint8_t* p) {
    return widen(_mm256_sub_epi8(nibbles_16(p + 2), _mm256_set1_epi8(8)));
  }
};

struct Q6 {
  static constexpr size_t kBytes = 26;
  GANGLION_INLINE __m256 scale(const uint8_t* p, float w) { return _mm256_set1_ps(w * half_scalar(p)); }
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
  GANGLION_INLINE __m256 scale(const uint8_t* p, float w) { return _mm256_set1_ps(w * half_scalar(p)); }
  GANGLION_INLINE Block load(const uint8_t* p) { return widen(load_256(p + 2)); }
};

struct F16 {
  static constexpr size_t kBytes = 64;
  GANGLION_INLINE __m256 scale(const uint8_t*, float w) { return _mm256_set1_ps(w); }
  GANGLION_INLINE Block load(const uint8_t* p) {
    return {{_mm256_cvtph_ps(load_128(p)), _mm256_cvtph_ps(load_128(p + 16)),
             _mm256_cvtph_ps(load_128(p + 32)), _mm256_cvtph_ps(load_128(p + 48))}};
  }
};

struct F32 {
  static constexpr size_t kBytes = 128;
  GANGLION_INLINE __m256 scale(const uint8_t*, float w) { return _mm256_set1_ps(w); }
  GANGLION_INLINE Block load(const uint8_t* p) {
    Block block;
    for (size_t k = 0; k < 4; ++k) block.codes[k] = _mm256_castsi256_ps(load_256(p + 32 * k));
    return block;
  }
};

/// `kRows` rows pass over `out` at once, in order: each block of `out` is loaded and stored once for all.
template <class Type, size_t kRows>
GANGLION_INLINE void axpy_rows(const DownArgs& args, size_t first) {
  const size_t offset = args.begin / 32 * Type::kBytes;
  const uint8_t* rows[kRows];
  const uint8_t* later[kRows];  // The rows after these: their bytes are asked for meanwhile.
  for (size_t j = 0; j < kRows; ++j) {
    rows[j] = args.rows[first + j] + offset;
    later[j] = args.rows[first + kRows + j < args.count ? first + kRows + j : args.count - 1] + offset;
  }
  for (size_t i = 0; i < args.n; i += 32) {
    __m256 acc[4];
    for (size_t k = 0; k < 4; ++k) acc[k] = _mm256_loadu_ps(args.out + i + 8 * k);
    for (size_t j = 0; j < kRows; ++j) {
      const __m256 scale = Type::scale(rows[j], args.weights[first + j]);
      const Block block = Type::load(rows[j]);
      for (size_t k = 0; k < 4; ++k) acc[k] = _mm256_fmadd_ps(scale, block.codes[k], acc[k]);
      _mm_prefetch(reinterpret_cast<const char*>(later[j]), _MM_HINT_T0);
      rows[j] += Type::kBytes;
      later[j] += Type::kBytes;
    }
    for (size_t k = 0; k < 4; ++k) _mm256_storeu_ps(args.out + i + 8 * k, acc[k]);
  }
}

template <class Type>
void down_axpy(const DownArgs& args) {
  size_t j = 0;
  for (; j + 4 <= args.count; j += 4) axpy_rows<Type, 4>(args, j);
  for (; j < args.count; ++j) axpy_rows<Type, 1>(args, j);
}

}  // namespace

const DownAxpyFn* avx2_down() {
  static const DownAxpyFn kernels[kDownTypes] = {down_axpy<Q4>, down_axpy<Q6>, down_axpy<Q8>, down_axpy<F16>,
                                                 down_axpy<F32>};
  return kernels;
}

}  // namespace ganglion::kernels

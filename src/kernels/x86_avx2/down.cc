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

/// Codes become floats by a table of their upper 16 bits, which hold small integers exactly. `kHalves`:
/// elements 4 k and 16 + 4 k begin the halves of vector k.
struct Q4 {
  static constexpr size_t kBytes = 18;
  static constexpr bool kHalves = true;
  GANGLION_INLINE __m256 scale(const uint8_t* p, float w) { return _mm256_set1_ps(w * half_scalar(p)); }
  GANGLION_INLINE Block load(const uint8_t* p) {
    const __m256i low = _mm256_broadcastsi128_si256(  // of -8, -7 .. 7
        _mm_setr_epi8(0, -32, -64, -96, -128, 64, 0, -128, 0, -128, 0, 64, -128, -96, -64, -32));
    const __m256i high = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(-63, -64, -64, -64, -64, -64, -64, -65, 0, 63, 64, 64, 64, 64, 64, 64));
    const __m256i codes = nibbles_16(p + 2), zero = _mm256_setzero_si256();
    const __m256i l = _mm256_shuffle_epi8(low, codes), h = _mm256_shuffle_epi8(high, codes);
    const __m256i a = _mm256_unpacklo_epi8(l, h), b = _mm256_unpackhi_epi8(l, h);
    return {{_mm256_castsi256_ps(_mm256_unpacklo_epi16(zero, a)),
             _mm256_castsi256_ps(_mm256_unpackhi_epi16(zero, a)),
             _mm256_castsi256_ps(_mm256_unpacklo_epi16(zero, b)),
             _mm256_castsi256_ps(_mm256_unpackhi_epi16(zero, b))}};
  }
};

/// Codes are the last bits of the upper halves of floats from 128 on.
struct Q6 {
  static constexpr size_t kBytes = 26;
  static constexpr bool kHalves = true;
  GANGLION_INLINE __m256 scale(const uint8_t* p, float w) { return _mm256_set1_ps(w * half_scalar(p)); }
  GANGLION_INLINE Block load(const uint8_t* p) {
    long long bits;
    memcpy(&bits, p + 18, sizeof bits);
    // Quarter k of the block takes bits 2k, 2k + 1 of the eight bytes.
    const __m256i high = _mm256_and_si256(
        _mm256_srlv_epi64(_mm256_set1_epi64x(bits), _mm256_setr_epi64x(0, 2, 4, 6)), _mm256_set1_epi8(3));
    const __m256i codes = _mm256_or_si256(nibbles_16(p + 2), _mm256_slli_epi16(high, 4));
    const __m256i of_128 = _mm256_set1_epi8(0x43), zero = _mm256_setzero_si256();
    const __m256i a = _mm256_unpacklo_epi8(codes, of_128), b = _mm256_unpackhi_epi8(codes, of_128);
    const __m256i floats[4] = {_mm256_unpacklo_epi16(zero, a), _mm256_unpackhi_epi16(zero, a),
                               _mm256_unpacklo_epi16(zero, b), _mm256_unpackhi_epi16(zero, b)};
    Block block;
    for (size_t k = 0; k < 4; ++k)
      block.codes[k] = _mm256_sub_ps(_mm256_castsi256_ps(floats[k]), _mm256_set1_ps(128 + 32));
    return block;
  }
};

struct Q8 {
  static constexpr size_t kBytes = 34;
  static constexpr bool kHalves = false;
  GANGLION_INLINE __m256 scale(const uint8_t* p, float w) { return _mm256_set1_ps(w * half_scalar(p)); }
  GANGLION_INLINE Block load(const uint8_t* p) { return widen(load_256(p + 2)); }
};

struct F16 {
  static constexpr size_t kBytes = 64;
  static constexpr bool kHalves = false;
  GANGLION_INLINE __m256 scale(const uint8_t*, float w) { return _mm256_set1_ps(w); }
  GANGLION_INLINE Block load(const uint8_t* p) {
    return {{_mm256_cvtph_ps(load_128(p)), _mm256_cvtph_ps(load_128(p + 16)),
             _mm256_cvtph_ps(load_128(p + 32)), _mm256_cvtph_ps(load_128(p + 48))}};
  }
};

struct F32 {
  static constexpr size_t kBytes = 128;
  static constexpr bool kHalves = false;
  GANGLION_INLINE __m256 scale(const uint8_t*, float w) { return _mm256_set1_ps(w); }
  GANGLION_INLINE Block load(const uint8_t* p) {
    Block block;
    for (size_t k = 0; k < 4; ++k) block.codes[k] = _mm256_castsi256_ps(load_256(p + 32 * k));
    return block;
  }
};

/// Vector k of 32 outputs, in the order of a type's blocks.
template <bool kHalves>
GANGLION_INLINE __m256 load_out(const float* out, size_t k) {
  if (!kHalves) return _mm256_loadu_ps(out + 8 * k);
  return _mm256_set_m128(_mm_loadu_ps(out + 16 + 4 * k), _mm_loadu_ps(out + 4 * k));
}

template <bool kHalves>
GANGLION_INLINE void store_out(__m256 v, float* out, size_t k) {
  if (!kHalves) return _mm256_storeu_ps(out + 8 * k, v);
  _mm_storeu_ps(out + 4 * k, _mm256_castps256_ps128(v));
  _mm_storeu_ps(out + 16 + 4 * k, _mm256_extractf128_ps(v, 1));
}

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
    __m256 acc[4];
    for (size_t k = 0; k < 4; ++k) acc[k] = load_out<Type::kHalves>(args.out + i, k);
    for (size_t j = 0; j < kRows; ++j) {
      const __m256 scale = Type::scale(rows[j], args.weights[first + j]);
      const Block block = Type::load(rows[j]);
      for (size_t k = 0; k < 4; ++k) acc[k] = _mm256_fmadd_ps(scale, block.codes[k], acc[k]);
      _mm_prefetch(reinterpret_cast<const char*>(later[j]), _MM_HINT_T0);
      rows[j] += Type::kBytes;
      later[j] += Type::kBytes;
    }
    for (size_t k = 0; k < 4; ++k) store_out<Type::kHalves>(acc[k], args.out + i, k);
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

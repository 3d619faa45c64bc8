// AVX-512 kernels of transposed down rows in integer codes. Same bits as reference/down.cc.
#include "kernels/x86_avx512vnni/avx512vnni.h"
#include "kernels/x86_avx512vnni/common.h"

namespace ganglion::kernels {
namespace {

/// Codes of one or two blocks of 32, in their order.
template <size_t kBlocks>
struct Codes {
  __m512 of[2 * kBlocks];
};

GANGLION_INLINE __m512 widen(__m128i bytes) {
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes));
}

struct Q4 {
  static constexpr size_t kBytes = 18;
  template <size_t kBlocks>
  GANGLION_INLINE Codes<kBlocks> load(const uint8_t* p) {
    const __m512 values = _mm512_setr_ps(-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7);
    Codes<kBlocks> codes;
    for (size_t b = 0; b < kBlocks; ++b) {
      // A permutation looks at the low four bits alone.
      const __m512i bytes = _mm512_cvtepu8_epi32(load_128(p + b * kBytes + 2));
      codes.of[2 * b] = _mm512_permutexvar_ps(bytes, values);
      codes.of[2 * b + 1] = _mm512_permutexvar_ps(_mm512_srli_epi32(bytes, 4), values);
    }
    return codes;
  }
};

struct Q6 {
  static constexpr size_t kBytes = 26;
  template <size_t kBlocks>
  GANGLION_INLINE Codes<kBlocks> load(const uint8_t* p) {
    const uint8_t* q = p + (kBlocks - 1) * kBytes;
    const __m512i shifts = _mm512_set_epi64(0x0004000400040004, 0x0004000400040004, 0, 0, 0x0004000400040004,
                                            0x0004000400040004, 0, 0);
    const __m512i bytes =
        _mm512_mask_broadcast_i32x4(_mm512_broadcast_i32x4(load_128(p + 2)), 0xff00, load_128(q + 2));
    // Quarter k of a block takes bits 2k, 2k + 1 of its eight bytes, as bits 4 and 5.
    const __m512i bits =
        _mm512_rolv_epi64(_mm512_mask_set1_epi64(_mm512_set1_epi64(load_i64(p + 18)), 0xf0, load_i64(q + 18)),
                          _mm512_setr_epi64(4, 2, 0, 62, 4, 2, 0, 62));
    const __m512i nibbles = low_nibbles(_mm512_srlv_epi16(bytes, shifts));
    const __m512i both = _mm512_or_si512(nibbles, _mm512_and_si512(bits, _mm512_set1_epi8(0x30)));
    const __m512i values = _mm512_sub_epi8(both, _mm512_set1_epi8(32));
    Codes<kBlocks> codes;
    codes.of[0] = widen(_mm512_castsi512_si128(values));
    codes.of[1] = widen(_mm512_extracti32x4_epi32(values, 1));
    if constexpr (kBlocks == 2) {
      codes.of[2] = widen(_mm512_extracti32x4_epi32(values, 2));
      codes.of[3] = widen(_mm512_extracti32x4_epi32(values, 3));
    }
    return codes;
  }
};

struct Q8 {
  static constexpr size_t kBytes = 34;
  template <size_t kBlocks>
  GANGLION_INLINE Codes<kBlocks> load(const uint8_t* p) {
    Codes<kBlocks> codes;
    for (size_t b = 0; b < kBlocks; ++b) {
      codes.of[2 * b] = widen(load_128(p + b * kBytes + 2));
      codes.of[2 * b + 1] = widen(load_128(p + b * kBytes + 18));
    }
    return codes;
  }
};

/// `kBlocks` blocks of `kRows` rows, in order, are added to `out`.
template <class Type, size_t kBlocks, size_t kRows>
GANGLION_INLINE void add_blocks(const uint8_t** rows, const float (*scales)[8], size_t b, float* out) {
  __m512 acc[2 * kBlocks];
  for (size_t k = 0; k < 2 * kBlocks; ++k) acc[k] = _mm512_loadu_ps(out + 16 * k);
  for (size_t j = 0; j < kRows; ++j) {
    const Codes<kBlocks> codes = Type::template load<kBlocks>(rows[j]);
    for (size_t k = 0; k < 2 * kBlocks; ++k)
      acc[k] = _mm512_fmadd_ps(_mm512_set1_ps(scales[j][b + k / 2]), codes.of[k], acc[k]);
    rows[j] += kBlocks * Type::kBytes;
  }
  for (size_t k = 0; k < 2 * kBlocks; ++k) _mm512_storeu_ps(out + 16 * k, acc[k]);
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
  float scales[kRows][8];
  size_t i = 0;
  for (; i + 256 <= args.n; i += 256) {
    for (size_t j = 0; j < kRows; ++j) {
      const __m256 weight = _mm256_set1_ps(args.weights[first + j]);
      _mm256_storeu_ps(scales[j], _mm256_mul_ps(weight, half_scales<Type::kBytes>(rows[j])));
      prefetch<8 * Type::kBytes>(later[j]);
      later[j] += 8 * Type::kBytes;
    }
    for (size_t b = 0; b < 8; b += 2) add_blocks<Type, 2, kRows>(rows, scales, b, args.out + i + 32 * b);
  }
  for (; i < args.n; i += 32) {
    for (size_t j = 0; j < kRows; ++j) scales[j][0] = args.weights[first + j] * half_scalar(rows[j]);
    add_blocks<Type, 1, kRows>(rows, scales, 0, args.out + i);
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

// Helpers of the AVX2 kernels. Everything is static: compiled with ISA flags, nothing here may be shared with
// objects that are not, so each object exports its accessor alone. No STL.
#pragma once

#include <immintrin.h>

#include <cstring>

#include "kernels/kernel_table.h"

#define GANGLION_INLINE [[maybe_unused]] [[gnu::always_inline]] static inline

/// Accessor of a part whose source both tables compile.
#ifdef __AVXVNNI__
#define GANGLION_PART(name) avxvnni_##name
#else
#define GANGLION_PART(name) avx2_##name
#endif

namespace ganglion::kernels {

#ifdef __AVXVNNI__
/// Adds the sums of four products each of 32 codes with q. Exact, as nothing saturates.
template <bool kSigned>
GANGLION_INLINE __m256i add_fours(__m256i sums, __m256i codes, __m256i q) {
  if (!kSigned) return _mm256_dpbusd_avx_epi32(sums, codes, q);
  return _mm256_dpbusd_avx_epi32(sums, _mm256_abs_epi8(codes), _mm256_sign_epi8(q, codes));
}
#endif

GANGLION_INLINE __m256i load_256(const void* p) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(p));
}
GANGLION_INLINE __m128i load_128(const void* p) {
  return _mm_loadu_si128(static_cast<const __m128i*>(p));
}

GANGLION_INLINE uint16_t load_u16(const uint8_t* p) {
  uint16_t value;
  memcpy(&value, p, sizeof value);
  return value;
}

GANGLION_INLINE int load_i32(const uint8_t* p) {
  int value;
  memcpy(&value, p, sizeof value);
  return value;
}
GANGLION_INLINE long long load_i64(const uint8_t* p) {
  long long value;
  memcpy(&value, p, sizeof value);
  return value;
}

GANGLION_INLINE float half_scalar(const uint8_t* p) {
  return _cvtsh_ss(load_u16(p));
}

/// Lane i all ones where i < count.
GANGLION_INLINE __m256i lanes_below(size_t count) {
  const __m256i index = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(count)), index);
}

/// Low nibbles of 16 bytes in the lower half, high ones in the upper: the element order of 32-element blocks.
GANGLION_INLINE __m256i nibbles_16(const uint8_t* p) {
  const __m128i bytes = load_128(p);
  const __m256i both = _mm256_inserti128_si256(_mm256_castsi128_si256(bytes), _mm_srli_epi16(bytes, 4), 1);
  return _mm256_and_si256(both, _mm256_set1_epi8(15));
}

/// Per half of the result: two sums of pairs of `a`, then two of `b`.
GANGLION_INLINE __m256i add_pairs(__m256i a, __m256i b) {
  const __m256i crossed = _mm256_castps_si256(
      _mm256_shuffle_ps(_mm256_castsi256_ps(a), _mm256_castsi256_ps(b), _MM_SHUFFLE(1, 0, 3, 2)));
  return _mm256_add_epi32(_mm256_blend_epi32(a, b, 0xcc), crossed);
}

/// Per half of the result: the sums of the four int32 of p[0], p[1], p[2] and p[3] in that half.
GANGLION_INLINE __m256i sum_halves(const __m256i* p) {
  const __m256 a = _mm256_castsi256_ps(add_pairs(p[0], p[1])), b = _mm256_castsi256_ps(add_pairs(p[2], p[3]));
  return _mm256_add_epi32(_mm256_castps_si256(_mm256_shuffle_ps(a, b, _MM_SHUFFLE(2, 0, 2, 0))),
                          _mm256_castps_si256(_mm256_shuffle_ps(a, b, _MM_SHUFFLE(3, 1, 3, 1))));
}

/// Lane k of the result is the sum of the eight int32 of p[k]. Integer sums are exact, so the order is free.
GANGLION_INLINE __m256i sum_each_8(const __m256i* p) {
  const __m256i first = sum_halves(p), second = sum_halves(p + 4);
  return _mm256_add_epi32(_mm256_blend_epi32(first, second, 0xf0),
                          _mm256_permute2x128_si256(first, second, 0x21));
}

/// Lane k of the result is the sum of the four int32 in half k % 2 of p[k / 2].
GANGLION_INLINE __m256i sum_each_4(const __m256i* p) {
  return _mm256_permutevar8x32_epi32(sum_halves(p), _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

/// The contract's tree over 8 lanes: i with i + 4, i + 2, i + 1.
GANGLION_INLINE float tree_8(__m256 v) {
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

/// The tree over 16 lanes, given as two vectors of 8.
GANGLION_INLINE float tree_16(__m256 low, __m256 high) {
  return tree_8(_mm256_add_ps(low, high));
}

/// How far ahead of its use a stream of weights is asked for. The hardware prefetcher stops at each 4 KiB
/// page; measured on Zen 4, one token from DRAM gains up to a half, and distances of 2 to 6 KiB are alike.
static constexpr size_t kPrefetchBytes = 3072;

/// Asks for `kBytes` from p on. Addresses past the end of a buffer are harmless.
template <size_t kBytes>
GANGLION_INLINE void prefetch(const uint8_t* p) {
  for (size_t i = 0; i < kBytes; i += 64) _mm_prefetch(reinterpret_cast<const char*>(p) + i, _MM_HINT_T0);
}

/// What is asked for while row r is computed for `tokens`: null or a row. Scattered rows are too short for
/// the hardware prefetcher to notice, and the next one would come too late.
GANGLION_INLINE const uint8_t* ahead_of(const MatmulArgs& args, size_t r, int tokens) {
  if (args.scattered) return r + 2 < args.rows + args.more ? args.scattered[r + 2] : nullptr;
  return tokens == 1 ? args.row(r) + kPrefetchBytes : nullptr;
}

/// What is asked for while block b of `blocks` of a tile's rows is multiplied: that share of the next rows,
/// in the order of memory; null behind the last rows. A few lines at a time, as many at once stall the
/// processor; addresses may be past the end.
GANGLION_INLINE const uint8_t* next_rows(const MatmulArgs& args, size_t r0, size_t rows, size_t b,
                                         size_t blocks, size_t block_bytes) {
  if (r0 + rows >= args.rows) return nullptr;
  const size_t at = b * rows;
  if (!args.scattered) return args.weights + (r0 + rows) * args.weight_stride + at * block_bytes;
  const size_t row = r0 + rows + at / blocks;
  return args.scattered[row < args.rows ? row : args.rows - 1] + at % blocks * block_bytes;
}

/// One activation row of an integer form.
struct ActivationRow {
  const int8_t* q;
  const float* scales;
  const int16_t* sums;
};

/// Rows that are gone through before the next tile of tokens, so that weights come from memory once and both
/// a tile's activations and these rows stay in the second-level cache.
static constexpr size_t kRowsAtOnce = 32;

/// Calls Kernel::row<T>(args, row, first activation row, out of that row and token) for all rows, in tiles of
/// up to four tokens that share the unpacked weights.
template <class Kernel>
GANGLION_INLINE void for_each_tile(const MatmulArgs& args) {
  for (size_t r0 = 0; r0 < args.rows; r0 += kRowsAtOnce) {
    const size_t r1 = args.rows - r0 < kRowsAtOnce ? args.rows : r0 + kRowsAtOnce;
    for (size_t t = 0; t < args.tokens; t += 4) {
      const uint8_t* x = args.x + t * args.x_stride;
      for (size_t r = r0; r < r1; ++r) {
        float* out = args.out + t * args.out_stride + r;
        switch (args.tokens - t) {
          case 1:
            Kernel::template row<1>(args, r, x, out);
            break;
          case 2:
            Kernel::template row<2>(args, r, x, out);
            break;
          case 3:
            Kernel::template row<3>(args, r, x, out);
            break;
          default:
            Kernel::template row<4>(args, r, x, out);
        }
      }
    }
  }
}

}  // namespace ganglion::kernels

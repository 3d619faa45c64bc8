// Tiles of rows and tokens for the AVX2 products of many tokens: panels of 8 rows, one per 32-bit lane,
// repacked on the stack. Everything is static, see common.h.
#pragma once

#include "kernels/x86_avx2/common.h"

namespace ganglion::kernels {

static constexpr size_t kPanelRows = 8;
/// With two panels, each broadcast of activations serves two products.
static constexpr size_t kPanels = 2;
/// Tokens of a tile share the work of repacking. Their lanes take 32 KiB of stack.
static constexpr size_t kTileTokens = 64;

/// The lanes of the contract, of one token and 8 rows.
using Lanes = float[8][kPanelRows];

/// The same place in each row of a panel. Rows past the last one repeat it, so that reads stay in bounds.
struct PanelRows {
  const uint8_t* p[kPanelRows];
};

GANGLION_INLINE PanelRows panel_rows(const MatmulArgs& args, size_t r0, size_t byte) {
  PanelRows rows;
  for (size_t r = 0; r < kPanelRows; ++r) {
    rows.p[r] = args.row(r0 + r < args.rows ? r0 + r : args.rows - 1) + byte;
  }
  return rows;
}

/// Rows i and i + 4, 16 bytes each.
GANGLION_INLINE __m256i two_rows(const PanelRows& rows, size_t at, size_t i) {
  return _mm256_inserti128_si256(_mm256_castsi128_si256(load_128(rows.p[i] + at)),
                                 load_128(rows.p[i + 4] + at), 1);
}

/// Lane r of columns[j] is the j-th 32-bit word of the 16 bytes `at` bytes into row r.
GANGLION_INLINE void transpose_16_bytes(const PanelRows& rows, size_t at, __m256i* columns) {
  const __m256i a = two_rows(rows, at, 0), b = two_rows(rows, at, 1);
  const __m256i c = two_rows(rows, at, 2), d = two_rows(rows, at, 3);
  const __m256i ab_low = _mm256_unpacklo_epi32(a, b), ab_high = _mm256_unpackhi_epi32(a, b);
  const __m256i cd_low = _mm256_unpacklo_epi32(c, d), cd_high = _mm256_unpackhi_epi32(c, d);
  columns[0] = _mm256_unpacklo_epi64(ab_low, cd_low);
  columns[1] = _mm256_unpackhi_epi64(ab_low, cd_low);
  columns[2] = _mm256_unpacklo_epi64(ab_high, cd_high);
  columns[3] = _mm256_unpackhi_epi64(ab_high, cd_high);
}

GANGLION_INLINE void transpose_32_bytes(const PanelRows& rows, size_t at, __m256i* columns) {
  transpose_16_bytes(rows, at, columns);
  transpose_16_bytes(rows, at + 16, columns + 4);
}

/// Four 32-bit words. Given as one intrinsic, GCC 12 puts them together in general registers and in memory.
GANGLION_INLINE __m128i four_words(const uint8_t* const* p, size_t at) {
  const __m128i ab =
      _mm_unpacklo_epi32(_mm_cvtsi32_si128(load_i32(p[0] + at)), _mm_cvtsi32_si128(load_i32(p[1] + at)));
  const __m128i cd =
      _mm_unpacklo_epi32(_mm_cvtsi32_si128(load_i32(p[2] + at)), _mm_cvtsi32_si128(load_i32(p[3] + at)));
  return _mm_unpacklo_epi64(ab, cd);
}

/// Lane r is the 32-bit word `at` bytes into row r.
GANGLION_INLINE __m256i column_of_words(const PanelRows& rows, size_t at) {
  return _mm256_set_m128i(four_words(rows.p + 4, at), four_words(rows.p, at));
}

/// The half-precision numbers in the low 16 bits of lanes.
GANGLION_INLINE __m256 low_halves(__m256i words) {
  const __m256i low = _mm256_and_si256(words, _mm256_set1_epi32(0xffff));
  return _mm256_cvtph_ps(_mm_packus_epi32(_mm256_castsi256_si128(low), _mm256_extracti128_si256(low, 1)));
}
GANGLION_INLINE __m256 high_halves(__m256i words) {
  return low_halves(_mm256_srli_epi32(words, 16));
}

GANGLION_INLINE __m256i low_nibbles(__m256i bytes) {
  return _mm256_and_si256(bytes, _mm256_set1_epi8(15));
}
GANGLION_INLINE __m256i high_nibbles(__m256i bytes) {
  return _mm256_and_si256(_mm256_srli_epi16(bytes, 4), _mm256_set1_epi8(15));
}

GANGLION_INLINE void store_256(void* p, __m256i v) {
  _mm256_store_si256(static_cast<__m256i*>(p), v);
}
GANGLION_INLINE __m256i aligned_256(const void* p) {
  return _mm256_load_si256(static_cast<const __m256i*>(p));
}

/// Asks for `kBytes` of each row of activations of the next group of up to kTokens tokens, which come from
/// the second or third cache in runs too short for the hardware to notice; addresses past the end are
/// harmless.
template <size_t kBytes, size_t kTokens>
GANGLION_INLINE void prefetch_group(const uint8_t* x, size_t stride) {
  for (size_t i = 0; i < kTokens; ++i) {
    for (size_t at = 0; at < kBytes; at += 64) {
      _mm_prefetch(reinterpret_cast<const char*>(x) + i * stride + at, _MM_HINT_T0);
    }
  }
}

/// Calls `tile(first row, panels, first token, tokens)` for all of a product.
template <class Tile>
GANGLION_INLINE void for_each_panel_tile(const MatmulArgs& args, Tile tile) {
  const size_t tiles = (args.tokens + kTileTokens - 1) / kTileTokens;
  for (size_t i = 0; i < tiles; ++i) {
    const size_t t0 = args.tokens * i / tiles, t1 = args.tokens * (i + 1) / tiles;
    for (size_t r0 = 0; r0 < args.rows; r0 += kPanels * kPanelRows) {
      tile(r0, args.rows - r0 <= kPanelRows ? size_t{1} : kPanels, t0, t1 - t0);
    }
  }
}

/// Calls visit.operator()<T>(token) for groups of T = 1 to kMost (3 or 4) tokens, of about the same size.
template <size_t kMost, class Visit>
GANGLION_INLINE void for_each_token_group(size_t tokens, Visit visit) {
  const size_t groups = (tokens + kMost - 1) / kMost;
  for (size_t g = 0; g < groups; ++g) {
    const size_t t = tokens * g / groups;
    switch (tokens * (g + 1) / groups - t) {
      case 1:
        visit.template operator()<1>(t);
        break;
      case 2:
        visit.template operator()<2>(t);
        break;
      case 3:
        visit.template operator()<3>(t);
        break;
      default:
        visit.template operator()<kMost>(t);
    }
  }
}

/// Adds up the lanes by the contract's tree, and writes the rows that there are.
GANGLION_INLINE void store_lanes(const MatmulArgs& args, size_t r0, size_t t0, size_t tokens,
                                 const Lanes* lanes) {
  const __m256i present = lanes_below(args.rows - r0 < kPanelRows ? args.rows - r0 : kPanelRows);
  for (size_t t = 0; t < tokens; ++t) {
    __m256 v[4];
    for (size_t l = 0; l < 4; ++l) {
      v[l] = _mm256_add_ps(_mm256_load_ps(lanes[t][l]), _mm256_load_ps(lanes[t][l + 4]));
    }
    const __m256 sum = _mm256_add_ps(_mm256_add_ps(v[0], v[2]), _mm256_add_ps(v[1], v[3]));
    _mm256_maskstore_ps(args.out + (t0 + t) * args.out_stride + r0, present, sum);
  }
}

}  // namespace ganglion::kernels

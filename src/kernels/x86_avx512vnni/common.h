// Helpers of the AVX-512 kernels, on top of those of AVX2. Everything is static, see there.
#pragma once

#include "kernels/x86_avx2/common.h"

namespace ganglion::kernels {

GANGLION_INLINE __m512i load_512(const void* p) {
  return _mm512_loadu_si512(p);
}

GANGLION_INLINE void store_512(void* p, __m512i v) {
  _mm512_storeu_si512(p, v);
}

/// Rows of a tile: one per 32-bit lane.
static constexpr size_t kTileRows = 16;

/// The same place in each row of a tile. Rows past the last one repeat it, so that reads stay in bounds.
struct TileRows {
  const uint8_t* p[kTileRows];
};

GANGLION_INLINE TileRows tile_rows(const MatmulArgs& args, size_t r0, size_t byte) {
  TileRows rows;
  for (size_t r = 0; r < kTileRows; ++r) {
    rows.p[r] = args.row(r0 + r < args.rows ? r0 + r : args.rows - 1) + byte;
  }
  return rows;
}

/// 16 bytes of each place, one per 128-bit lane.
GANGLION_INLINE __m512i load_four(const uint8_t* a, const uint8_t* b, const uint8_t* c, const uint8_t* d) {
  __m512i v = _mm512_castsi128_si512(load_128(a));
  v = _mm512_mask_broadcast_i32x4(v, 0x00f0, load_128(b));
  v = _mm512_mask_broadcast_i32x4(v, 0x0f00, load_128(c));
  return _mm512_mask_broadcast_i32x4(v, 0xf000, load_128(d));
}

/// Four rows' 16 bytes: rows i, i + 4, i + 8 and i + 12.
GANGLION_INLINE __m512i four_rows(const TileRows& rows, size_t at, size_t i) {
  return load_four(rows.p[i] + at, rows.p[i + 4] + at, rows.p[i + 8] + at, rows.p[i + 12] + at);
}

/// Lane r of columns[j] is the j-th 32-bit word of the 16 bytes `at` bytes into row r.
GANGLION_INLINE void transpose_16_bytes(const TileRows& rows, size_t at, __m512i* columns) {
  const __m512i a = four_rows(rows, at, 0), b = four_rows(rows, at, 1);
  const __m512i c = four_rows(rows, at, 2), d = four_rows(rows, at, 3);
  const __m512i ab_low = _mm512_unpacklo_epi32(a, b), ab_high = _mm512_unpackhi_epi32(a, b);
  const __m512i cd_low = _mm512_unpacklo_epi32(c, d), cd_high = _mm512_unpackhi_epi32(c, d);
  columns[0] = _mm512_unpacklo_epi64(ab_low, cd_low);
  columns[1] = _mm512_unpackhi_epi64(ab_low, cd_low);
  columns[2] = _mm512_unpacklo_epi64(ab_high, cd_high);
  columns[3] = _mm512_unpackhi_epi64(ab_high, cd_high);
}

/// Four 32-bit words. Given as one intrinsic, GCC 12 puts them together in general registers and in memory.
GANGLION_INLINE __m128i four_words(const uint8_t* a, const uint8_t* b, const uint8_t* c, const uint8_t* d) {
  const __m128i ab = _mm_unpacklo_epi32(_mm_cvtsi32_si128(load_i32(a)), _mm_cvtsi32_si128(load_i32(b)));
  const __m128i cd = _mm_unpacklo_epi32(_mm_cvtsi32_si128(load_i32(c)), _mm_cvtsi32_si128(load_i32(d)));
  return _mm_unpacklo_epi64(ab, cd);
}

/// The first 32 bits of eight blocks of kBytes.
template <size_t kBytes>
GANGLION_INLINE __m256i heads(const uint8_t* p) {
  const uint8_t* q = p + 4 * kBytes;
  return _mm256_set_m128i(four_words(q, q + kBytes, q + 2 * kBytes, q + 3 * kBytes),
                          four_words(p, p + kBytes, p + 2 * kBytes, p + 3 * kBytes));
}

/// The half-precision scales at the start of eight blocks. Those of 18-byte blocks are words 0, 9, .. 63.
template <size_t kBytes>
GANGLION_INLINE __m256 half_scales(const uint8_t* p) {
  if (kBytes != 18) return _mm256_cvtph_ps(_mm256_cvtepi32_epi16(heads<kBytes>(p)));
  const __m512i pick = _mm512_castsi128_si512(_mm_setr_epi16(0, 9, 18, 27, 36, 45, 54, 63));
  const __m512i halves = _mm512_permutex2var_epi16(load_512(p), pick, load_512(p + 64));
  return _mm256_cvtph_ps(_mm512_castsi512_si128(halves));
}

/// Lane r is the 32-bit word `at` bytes into row r.
GANGLION_INLINE __m512i column_of_words(const TileRows& rows, size_t at) {
  __m128i words[4];
  for (size_t i = 0; i < 4; ++i) {
    const uint8_t* const* p = rows.p + 4 * i;
    words[i] = four_words(p[0] + at, p[1] + at, p[2] + at, p[3] + at);
  }
  const __m256i low = _mm256_set_m128i(words[1], words[0]), high = _mm256_set_m128i(words[3], words[2]);
  return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
}

/// The half-precision numbers in the low 16 bits of the lanes.
GANGLION_INLINE __m512 low_halves(__m512i words) {
  return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(words));
}

GANGLION_INLINE __m512i low_nibbles(__m512i bytes) {
  return _mm512_and_si512(bytes, _mm512_set1_epi8(15));
}
GANGLION_INLINE __m512i high_nibbles(__m512i bytes) {
  return _mm512_and_si512(_mm512_srli_epi16(bytes, 4), _mm512_set1_epi8(15));
}

/// Values of the codebook of IQ4_NL and IQ4_XS, 128 higher.
GANGLION_INLINE __m512i iq4_codebook() {
  return _mm512_broadcast_i32x4(
      _mm_setr_epi8(1, 24, 45, 63, 79, 93, 106, 118, -127, -115, -103, -90, -75, -59, -39, -15));
}

/// The doubled E2M1 values of MXFP4, 12 higher.
GANGLION_INLINE __m512i fp4_codebook() {
  return _mm512_broadcast_i32x4(_mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
}

/// Half the power of two of the E8M0 exponent in the low byte of each lane; the two lowest are subnormal.
GANGLION_INLINE __m512 e8m0_halves(__m512i words) {
  const __m512i e = _mm512_and_si512(words, _mm512_set1_epi32(255));
  const __m512i normal = _mm512_slli_epi32(_mm512_sub_epi32(e, _mm512_set1_epi32(1)), 23);
  const __m512i subnormal = _mm512_sllv_epi32(_mm512_set1_epi32(0x00200000), e);
  const __mmask16 low = _mm512_cmplt_epi32_mask(e, _mm512_set1_epi32(2));
  return _mm512_castsi512_ps(_mm512_mask_mov_epi32(normal, low, subnormal));
}

/// A tile is up to two panels of 16 rows: with two, each broadcast of activations serves two products.
static constexpr size_t kPanels = 2;

/// With fewer tokens, repacking costs more than it saves (measured on Zen 5).
static constexpr size_t kFewestTokens = 7;

/// Tokens of a tile share the work of repacking weights. Their lanes, 40 KiB, are most of a tile's scratch on
/// the stack, which stays below 64 KiB.
static constexpr size_t kTileTokens = 40;

/// Asks for `kBytes` of each of six activation rows. Tokens of one tile come from the second or third cache,
/// in runs too short for the hardware to notice; addresses past the end are harmless.
template <size_t kBytes>
GANGLION_INLINE void prefetch_six(const uint8_t* x, size_t stride) {
  for (size_t i = 0; i < 6; ++i) {
    for (size_t at = 0; at < kBytes; at += 64) {
      _mm_prefetch(reinterpret_cast<const char*>(x) + i * stride + at, _MM_HINT_T0);
    }
  }
}

/// The lanes of the contract, of one token and 16 rows.
using Lanes = float[8][kTileRows];

/// Calls `tile(first row, panels, first token, tokens)` for all of a product.
template <class Tile>
GANGLION_INLINE void for_each_panel_tile(const MatmulArgs& args, Tile tile) {
  const size_t tiles = (args.tokens + kTileTokens - 1) / kTileTokens;
  for (size_t i = 0; i < tiles; ++i) {
    const size_t t0 = args.tokens * i / tiles, t1 = args.tokens * (i + 1) / tiles;
    for (size_t r0 = 0; r0 < args.rows; r0 += kPanels * kTileRows) {
      tile(r0, args.rows - r0 <= kTileRows ? size_t{1} : kPanels, t0, t1 - t0);
    }
  }
}

/// Calls visit.operator()<T>(token) for groups of T = 1 to 6 tokens, of about the same size: 12 sums of two
/// panels and as many accumulators fill the registers.
template <class Visit>
GANGLION_INLINE void for_each_token_group(size_t tokens, Visit visit) {
  const size_t groups = (tokens + 5) / 6;
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
      case 4:
        visit.template operator()<4>(t);
        break;
      case 5:
        visit.template operator()<5>(t);
        break;
      default:
        visit.template operator()<6>(t);
    }
  }
}

/// Adds up the lanes by the contract's tree, and writes the rows that there are.
GANGLION_INLINE void store_lanes(const MatmulArgs& args, size_t r0, size_t t0, size_t tokens,
                                 const Lanes* lanes) {
  const size_t rows = args.rows - r0 < kTileRows ? args.rows - r0 : kTileRows;
  const __mmask16 present = static_cast<__mmask16>((1u << rows) - 1);
  for (size_t t = 0; t < tokens; ++t) {
    __m512 v[4];
    for (size_t l = 0; l < 4; ++l) {
      v[l] = _mm512_add_ps(_mm512_load_ps(lanes[t][l]), _mm512_load_ps(lanes[t][l + 4]));
    }
    const __m512 sum = _mm512_add_ps(_mm512_add_ps(v[0], v[2]), _mm512_add_ps(v[1], v[3]));
    _mm512_mask_storeu_ps(args.out + (t0 + t) * args.out_stride + r0, present, sum);
  }
}

}  // namespace ganglion::kernels

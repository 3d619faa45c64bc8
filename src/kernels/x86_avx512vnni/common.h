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
    const size_t row = r0 + r < args.rows ? r0 + r : args.rows - 1;
    rows.p[r] = args.weights + row * args.weight_stride + byte;
  }
  return rows;
}

/// Four rows' 16 bytes, one row per 128-bit lane: rows i, i + 4, i + 8 and i + 12.
GANGLION_INLINE __m512i four_rows(const TileRows& rows, size_t at, size_t i) {
  __m512i v = _mm512_castsi128_si512(load_128(rows.p[i] + at));
  v = _mm512_mask_broadcast_i32x4(v, 0x00f0, load_128(rows.p[i + 4] + at));
  v = _mm512_mask_broadcast_i32x4(v, 0x0f00, load_128(rows.p[i + 8] + at));
  return _mm512_mask_broadcast_i32x4(v, 0xf000, load_128(rows.p[i + 12] + at));
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

/// Lane r is the 32-bit word `at` bytes into row r.
GANGLION_INLINE __m512i column_of_words(const TileRows& rows, size_t at) {
  alignas(64) int words[kTileRows];
  for (size_t r = 0; r < kTileRows; ++r) words[r] = load_i32(rows.p[r] + at);
  return load_512(words);
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

/// The contract's tree over 8 lanes, each a vector of rows.
GANGLION_INLINE __m512 tree_of_lanes(const float (*lanes)[kTileRows]) {
  __m512 v[4];
  for (size_t l = 0; l < 4; ++l) v[l] = _mm512_add_ps(_mm512_load_ps(lanes[l]), _mm512_load_ps(lanes[l + 4]));
  return _mm512_add_ps(_mm512_add_ps(v[0], v[2]), _mm512_add_ps(v[1], v[3]));
}

/// With fewer tokens, repacking costs more than it saves (measured on Zen 4).
static constexpr size_t kFewestTokens = 4;

/// Tokens of a tile: as many as are needed to share the work of repacking weights; evenly spread.
static constexpr size_t kTileTokens = 64;

GANGLION_INLINE size_t token_tile(size_t tokens) {
  const size_t tiles = (tokens + kTileTokens - 1) / kTileTokens;
  return (tokens + tiles - 1) / tiles;
}

}  // namespace ganglion::kernels

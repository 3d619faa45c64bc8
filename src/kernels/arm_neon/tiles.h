// Tiles of four rows and some tokens for the ARM products of many tokens: rows are unpacked once, into the
// order that the products of an instruction set take, and meet every token of the tile. Everything is static,
// see common.h.
#pragma once

#include "kernels/arm_neon/common.h"

namespace ganglion::kernels {

static constexpr size_t kTileRows = 4;
/// Tokens of a tile share the work of unpacking. Their lanes take 8 KiB of stack.
static constexpr size_t kTileTokens = 64;
/// With fewer tokens, the kernels of single rows run: they unpack once for up to four tokens, too.
static constexpr size_t kFewestTokens = 4;

/// The lanes of the contract, of one token and four rows.
using Lanes = float[8][kTileRows];

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

/// 16 elements of four rows.
struct Quad {
  int8x16_t v[4];
};

// Each instruction set has: the order of a Quad; Sums of products of four rows with T tokens, and how many
// tokens fill the registers with them; multiply, which adds products; add_scaled, which adds sums times a
// factor per row; and sums_of, the sums of one token by row.

#if defined(__ARM_FEATURE_MATMUL_INT8)

static constexpr size_t kGroupTokens = 4;

GANGLION_INLINE int8x16_t low_words(int8x16_t a, int8x16_t b) {
  return vreinterpretq_s8_s64(vzip1q_s64(vreinterpretq_s64_s8(a), vreinterpretq_s64_s8(b)));
}
GANGLION_INLINE int8x16_t high_words(int8x16_t a, int8x16_t b) {
  return vreinterpretq_s8_s64(vzip2q_s64(vreinterpretq_s64_s8(a), vreinterpretq_s64_s8(b)));
}

/// Elements 0 to 7 of rows 0 and 1, of rows 2 and 3, then elements 8 to 15 likewise.
GANGLION_INLINE Quad arrange(int8x16_t a, int8x16_t b, int8x16_t c, int8x16_t d) {
  return {{low_words(a, b), low_words(c, d), high_words(a, b), high_words(c, d)}};
}

/// Two vectors per pair of tokens: 2 x 2 sums of two rows and two tokens. The last token of an odd number is
/// multiplied twice.
template <size_t T>
struct Sums {
  int32x4_t v[T + T % 2];
};

template <size_t T>
GANGLION_INLINE void multiply(const Quad& rows, const int8x16_t* q, Sums<T>* sums) {
  for (size_t t = 0; t < T; t += 2) {
    const int8x16_t second = q[t + 1 < T ? t + 1 : t];
    const int8x16_t low = low_words(q[t], second), high = high_words(q[t], second);
    for (size_t r = 0; r < 2; ++r) {
      sums->v[t + r] = vmmlaq_s32(vmmlaq_s32(sums->v[t + r], rows.v[r], low), rows.v[2 + r], high);
    }
  }
}

template <size_t T>
GANGLION_INLINE void add_scaled(const Sums<T>& sums, int32x4_t factors, Sums<T>* totals) {
  const int32x4_t first = vzip1q_s32(factors, factors), second = vzip2q_s32(factors, factors);
  for (size_t t = 0; t < T; t += 2) {
    totals->v[t] = vmlaq_s32(totals->v[t], sums.v[t], first);
    totals->v[t + 1] = vmlaq_s32(totals->v[t + 1], sums.v[t + 1], second);
  }
}

template <size_t T>
GANGLION_INLINE int32x4_t sums_of(const Sums<T>& sums, size_t t) {
  const int32x4_t first = sums.v[t / 2 * 2], second = sums.v[t / 2 * 2 + 1];
  return t % 2 == 0 ? vuzp1q_s32(first, second) : vuzp2q_s32(first, second);
}

#elif defined(__ARM_FEATURE_DOTPROD)

static constexpr size_t kGroupTokens = 4;

/// Elements 4 k to 4 k + 3 of all rows together: a transposition of 32-bit words.
GANGLION_INLINE Quad arrange(int8x16_t a, int8x16_t b, int8x16_t c, int8x16_t d) {
  const int32x4_t wa = vreinterpretq_s32_s8(a), wb = vreinterpretq_s32_s8(b);
  const int32x4_t wc = vreinterpretq_s32_s8(c), wd = vreinterpretq_s32_s8(d);
  const int64x2_t ab_even = vreinterpretq_s64_s32(vtrn1q_s32(wa, wb));
  const int64x2_t ab_odd = vreinterpretq_s64_s32(vtrn2q_s32(wa, wb));
  const int64x2_t cd_even = vreinterpretq_s64_s32(vtrn1q_s32(wc, wd));
  const int64x2_t cd_odd = vreinterpretq_s64_s32(vtrn2q_s32(wc, wd));
  return {
      {vreinterpretq_s8_s64(vtrn1q_s64(ab_even, cd_even)), vreinterpretq_s8_s64(vtrn1q_s64(ab_odd, cd_odd)),
       vreinterpretq_s8_s64(vtrn2q_s64(ab_even, cd_even)), vreinterpretq_s8_s64(vtrn2q_s64(ab_odd, cd_odd))}};
}

/// One row per lane.
template <size_t T>
struct Sums {
  int32x4_t v[T];
};

template <size_t T>
GANGLION_INLINE void multiply(const Quad& rows, const int8x16_t* q, Sums<T>* sums) {
  for (size_t t = 0; t < T; ++t) {
    int32x4_t sum = vdotq_laneq_s32(sums->v[t], rows.v[0], q[t], 0);
    sum = vdotq_laneq_s32(sum, rows.v[1], q[t], 1);
    sum = vdotq_laneq_s32(sum, rows.v[2], q[t], 2);
    sums->v[t] = vdotq_laneq_s32(sum, rows.v[3], q[t], 3);
  }
}

template <size_t T>
GANGLION_INLINE void add_scaled(const Sums<T>& sums, int32x4_t factors, Sums<T>* totals) {
  for (size_t t = 0; t < T; ++t) totals->v[t] = vmlaq_s32(totals->v[t], sums.v[t], factors);
}

template <size_t T>
GANGLION_INLINE int32x4_t sums_of(const Sums<T>& sums, size_t t) {
  return sums.v[t];
}

#else

static constexpr size_t kGroupTokens = 2;

/// Row by row.
GANGLION_INLINE Quad arrange(int8x16_t a, int8x16_t b, int8x16_t c, int8x16_t d) {
  return {{a, b, c, d}};
}

/// Four vectors per token: the sum of each is that of a row.
template <size_t T>
struct Sums {
  int32x4_t v[4 * T];
};

template <size_t T>
GANGLION_INLINE void multiply(const Quad& rows, const int8x16_t* q, Sums<T>* sums) {
  for (size_t t = 0; t < T; ++t) {
    for (size_t r = 0; r < 4; ++r) sums->v[4 * t + r] = dot_16(sums->v[4 * t + r], rows.v[r], q[t]);
  }
}

template <size_t T>
GANGLION_INLINE void add_scaled(const Sums<T>& sums, int32x4_t factors, Sums<T>* totals) {
  for (size_t t = 0; t < T; ++t) {
    const int32x4_t* from = sums.v + 4 * t;
    int32x4_t* to = totals->v + 4 * t;
    to[0] = vmlaq_laneq_s32(to[0], from[0], factors, 0);
    to[1] = vmlaq_laneq_s32(to[1], from[1], factors, 1);
    to[2] = vmlaq_laneq_s32(to[2], from[2], factors, 2);
    to[3] = vmlaq_laneq_s32(to[3], from[3], factors, 3);
  }
}

template <size_t T>
GANGLION_INLINE int32x4_t sums_of(const Sums<T>& sums, size_t t) {
  return sum_each_4(sums.v + 4 * t);
}

#endif

template <size_t T>
GANGLION_INLINE Sums<T> no_sums() {
  Sums<T> sums;
  for (int32x4_t& v : sums.v) v = vdupq_n_s32(0);
  return sums;
}

/// Calls `tile(first row, first token, tokens)` for all of a product, in tiles of about the same size.
template <class Tile>
GANGLION_INLINE void for_each_row_tile(const MatmulArgs& args, Tile tile) {
  const size_t tiles = (args.tokens + kTileTokens - 1) / kTileTokens;
  for (size_t i = 0; i < tiles; ++i) {
    const size_t t0 = args.tokens * i / tiles, t1 = args.tokens * (i + 1) / tiles;
    for (size_t r0 = 0; r0 < args.rows; r0 += kTileRows) tile(r0, t0, t1 - t0);
  }
}

/// Calls visit.operator()<T>(token) for groups of T = 1 to kGroupTokens tokens.
template <class Visit>
GANGLION_INLINE void for_each_token_group(size_t tokens, Visit visit) {
  size_t t = 0;
  for (; t + kGroupTokens <= tokens; t += kGroupTokens) visit.template operator()<kGroupTokens>(t);
  for (; t + 2 <= tokens; t += 2) visit.template operator()<2>(t);
  if (t < tokens) visit.template operator()<1>(t);
}

/// Adds up the lanes by the contract's tree, and writes the rows that there are.
GANGLION_INLINE void store_lanes(const MatmulArgs& args, size_t r0, size_t t0, size_t tokens,
                                 const Lanes* lanes) {
  const size_t rows = args.rows - r0 < kTileRows ? args.rows - r0 : kTileRows;
  for (size_t t = 0; t < tokens; ++t) {
    float32x4_t v[4];
    for (size_t l = 0; l < 4; ++l) v[l] = vaddq_f32(vld1q_f32(lanes[t][l]), vld1q_f32(lanes[t][l + 4]));
    float sums[kTileRows];
    vst1q_f32(sums, vaddq_f32(vaddq_f32(v[0], v[2]), vaddq_f32(v[1], v[3])));
    memcpy(args.out + (t0 + t) * args.out_stride + r0, sums, rows * sizeof(float));
  }
}

}  // namespace ganglion::kernels

// AVX-512 VNNI products of many tokens with the types of 256-element super-blocks; see gemm_small.cc for the
// tiles. The int32 sum of a group is multiplied by its sub-scale; sub-minima, or what codes stand above their
// value, are products of int16 pairs with the sums of activations. Same bits as reference/matmul.cc.
#include "kernels/x86_avx2/avx2.h"
#include "kernels/x86_avx512vnni/avx512vnni.h"
#include "kernels/x86_avx512vnni/common.h"

namespace ganglion::kernels {
namespace {

/// One super-block of 16 rows.
struct alignas(64) Super {
  uint8_t codes[64][64];       ///< Elements 4 k to 4 k + 3 of all rows together.
  int32_t sub_scales[16][16];  ///< By group, then by row; types with groups of 32 have eight.
  int16_t pairs[8][16][2];     ///< Sub-minima, or -offset * sub-scales, of two groups of 16.
  float scales[16];
  float min_scales[16];
};

struct alignas(64) Scratch {
  Super panels[kPanels];
  Lanes lanes[kPanels][kTileTokens];
};

/// 32 bytes of each row: word k of all rows in columns[k].
GANGLION_INLINE void transpose_32_bytes(const TileRows& rows, size_t at, __m512i* columns) {
  transpose_16_bytes(rows, at, columns);
  transpose_16_bytes(rows, at + 16, columns + 4);
}

/// Elements 32 * group + 4 k to + 3.
GANGLION_INLINE void put(Super* super, size_t group, size_t k, __m512i codes) {
  store_512(super->codes[8 * group + k], codes);
}

/// Byte i of each lane, extended with its sign.
GANGLION_INLINE __m512i byte_of_lanes(__m512i words, unsigned i) {
  return _mm512_srai_epi32(_mm512_slli_epi32(words, 24 - 8 * i), 24);
}

/// Bytes 2 i and 2 i + 1 of each lane as int16, times 2^shift.
GANGLION_INLINE __m512i byte_pair_of_lanes(__m512i words, int i, unsigned shift) {
  const char first = static_cast<char>(2 * i), second = static_cast<char>(2 * i + 1), none = -128;
  const __m128i lane = _mm_setr_epi8(none, first, none, second, none, static_cast<char>(first + 4), none,
                                     static_cast<char>(second + 4), none, static_cast<char>(first + 8), none,
                                     static_cast<char>(second + 8), none, static_cast<char>(first + 12), none,
                                     static_cast<char>(second + 12));
  return _mm512_srai_epi16(_mm512_shuffle_epi8(words, _mm512_broadcast_i32x4(lane)), 8 - shift);
}

/// Sub-scales of 16 groups as four words of int8, and their products with -2^kOffsetLog2.
template <unsigned kOffsetLog2>
GANGLION_INLINE void put_16_scales(const __m512i* words, Super* super) {
  for (unsigned g = 0; g < 16; ++g) store_512(super->sub_scales[g], byte_of_lanes(words[g / 4], g % 4));
  for (int i = 0; i < 8; ++i) {
    const __m512i offsets = byte_pair_of_lanes(words[i / 2], i % 2, kOffsetLog2);
    store_512(super->pairs[i], _mm512_sub_epi16(_mm512_setzero_si512(), offsets));
  }
}

/// Both int16 of lanes are byte i of the lane of `words`, times 2^shift: the value of one group of 32, twice.
GANGLION_INLINE __m512i twice(__m512i words, unsigned i, unsigned shift) {
  const __m512i value = _mm512_slli_epi32(byte_of_lanes(words, i), shift);
  return _mm512_mask_blend_epi16(0xaaaaaaaa, value, _mm512_slli_epi32(value, 16));
}

/// Scales and minima of Q4_K and Q5_K: 12 bytes of eight 6-bit pairs, for groups of 32.
GANGLION_INLINE void put_k_scales(const TileRows& rows, size_t at, Super* super) {
  const __m512i first = column_of_words(rows, at), second = column_of_words(rows, at + 4);
  const __m512i third = column_of_words(rows, at + 8);
  const __m512i six = _mm512_set1_epi8(63), top = _mm512_set1_epi8(0x30);
  const __m512i scales[2] = {
      _mm512_and_si512(first, six),
      _mm512_or_si512(low_nibbles(third), _mm512_and_si512(_mm512_srli_epi32(first, 2), top))};
  const __m512i mins[2] = {
      _mm512_and_si512(second, six),
      _mm512_or_si512(high_nibbles(third), _mm512_and_si512(_mm512_srli_epi32(second, 2), top))};
  for (unsigned g = 0; g < 8; ++g) {
    store_512(super->sub_scales[g], byte_of_lanes(scales[g / 4], g % 4));
    store_512(super->pairs[g], twice(mins[g / 4], g % 4, 0));
  }
}

GANGLION_INLINE void put_scales(const TileRows& rows, size_t at, Super* super) {
  _mm512_store_ps(super->scales, low_halves(column_of_words(rows, at)));
}
GANGLION_INLINE void put_scales_and_mins(const TileRows& rows, size_t at, Super* super) {
  const __m512i words = column_of_words(rows, at);
  _mm512_store_ps(super->scales, low_halves(words));
  _mm512_store_ps(super->min_scales, low_halves(_mm512_srli_epi32(words, 16)));
}

/// Bits [shift, shift + 2) of each byte, moved to bits [to, to + 2).
GANGLION_INLINE __m512i two_bits(__m512i bytes, unsigned shift, unsigned to) {
  const __m512i moved =
      shift >= to ? _mm512_srli_epi16(bytes, shift - to) : _mm512_slli_epi16(bytes, to - shift);
  return _mm512_and_si512(moved, _mm512_set1_epi8(static_cast<char>(3 << to)));
}
GANGLION_INLINE __m512i one_bit(__m512i bytes, unsigned bit, unsigned to) {
  const __m512i moved = bit >= to ? _mm512_srli_epi16(bytes, bit - to) : _mm512_slli_epi16(bytes, to - bit);
  return _mm512_and_si512(moved, _mm512_set1_epi8(static_cast<char>(1 << to)));
}

// Each type: its bytes; the size of its groups; whether it has minima.
struct Q2K {
  static constexpr TensorType kType = TensorType::kQ2_K;
  static constexpr size_t kBytes = 84, kGroup = 16;
  static constexpr bool kHasMin = true;
  GANGLION_INLINE void repack(const TileRows& rows, Super* super) {
    __m512i words[4];
    transpose_16_bytes(rows, 0, words);
    for (unsigned g = 0; g < 16; ++g) {
      store_512(super->sub_scales[g], byte_of_lanes(low_nibbles(words[g / 4]), g % 4));
    }
    for (int i = 0; i < 8; ++i) {
      store_512(super->pairs[i], byte_pair_of_lanes(high_nibbles(words[i / 2]), i % 2, 0));
    }
    put_scales_and_mins(rows, 80, super);
    for (size_t h = 0; h < 2; ++h) {
      __m512i bytes[8];
      transpose_32_bytes(rows, 16 + 32 * h, bytes);
      for (size_t k = 0; k < 8; ++k) {
        for (unsigned j = 0; j < 4; ++j) put(super, 4 * h + j, k, two_bits(bytes[k], 2 * j, 0));
      }
    }
  }
};

struct Q3K {
  static constexpr TensorType kType = TensorType::kQ3_K;
  static constexpr size_t kBytes = 110, kGroup = 16;
  static constexpr bool kHasMin = false;
  GANGLION_INLINE void repack(const TileRows& rows, Super* super) {
    const __m512i first = column_of_words(rows, 96), second = column_of_words(rows, 100);
    const __m512i third = column_of_words(rows, 104), above = _mm512_set1_epi8(32);
    const __m512i words[4] = {
        _mm512_sub_epi8(_mm512_or_si512(low_nibbles(first), two_bits(third, 0, 4)), above),
        _mm512_sub_epi8(_mm512_or_si512(low_nibbles(second), two_bits(third, 2, 4)), above),
        _mm512_sub_epi8(_mm512_or_si512(high_nibbles(first), two_bits(third, 4, 4)), above),
        _mm512_sub_epi8(_mm512_or_si512(high_nibbles(second), two_bits(third, 6, 4)), above)};
    put_16_scales<2>(words, super);
    put_scales(rows, 106, super);
    __m512i high[8];
    transpose_32_bytes(rows, 0, high);
    for (unsigned h = 0; h < 2; ++h) {
      __m512i bytes[8];
      transpose_32_bytes(rows, 32 + 32 * h, bytes);
      for (size_t k = 0; k < 8; ++k) {
        for (unsigned j = 0; j < 4; ++j) {
          const __m512i codes = _mm512_or_si512(two_bits(bytes[k], 2 * j, 0), one_bit(high[k], 4 * h + j, 2));
          put(super, 4 * h + j, k, codes);
        }
      }
    }
  }

 private:
  /// The scale is in the last two bytes: words are read from two bytes earlier, to stay within the block.
  GANGLION_INLINE void put_scales(const TileRows& rows, size_t at, Super* super) {
    _mm512_store_ps(super->scales, low_halves(_mm512_srli_epi32(column_of_words(rows, at), 16)));
  }
};

struct Q4K {
  static constexpr TensorType kType = TensorType::kQ4_K;
  static constexpr size_t kBytes = 144, kGroup = 32;
  static constexpr bool kHasMin = true;
  GANGLION_INLINE void repack(const TileRows& rows, Super* super) {
    put_scales_and_mins(rows, 0, super);
    put_k_scales(rows, 4, super);
    for (size_t j = 0; j < 4; ++j) {
      __m512i bytes[8];
      transpose_32_bytes(rows, 16 + 32 * j, bytes);
      for (size_t k = 0; k < 8; ++k) {
        put(super, 2 * j, k, low_nibbles(bytes[k]));
        put(super, 2 * j + 1, k, high_nibbles(bytes[k]));
      }
    }
  }
};

struct Q5K {
  static constexpr TensorType kType = TensorType::kQ5_K;
  static constexpr size_t kBytes = 176, kGroup = 32;
  static constexpr bool kHasMin = true;
  GANGLION_INLINE void repack(const TileRows& rows, Super* super) {
    put_scales_and_mins(rows, 0, super);
    put_k_scales(rows, 4, super);
    __m512i high[8];
    transpose_32_bytes(rows, 16, high);
    for (unsigned j = 0; j < 4; ++j) {
      __m512i bytes[8];
      transpose_32_bytes(rows, 48 + 32 * j, bytes);
      for (size_t k = 0; k < 8; ++k) {
        put(super, 2 * j, k, _mm512_or_si512(low_nibbles(bytes[k]), one_bit(high[k], 2 * j, 4)));
        put(super, 2 * j + 1, k, _mm512_or_si512(high_nibbles(bytes[k]), one_bit(high[k], 2 * j + 1, 4)));
      }
    }
  }
};

struct Q6K {
  static constexpr TensorType kType = TensorType::kQ6_K;
  static constexpr size_t kBytes = 210, kGroup = 16;
  static constexpr bool kHasMin = false;
  GANGLION_INLINE void repack(const TileRows& rows, Super* super) {
    __m512i words[4];
    transpose_16_bytes(rows, 192, words);
    put_16_scales<5>(words, super);
    // The scale is in the last two bytes: words are read from two bytes earlier, to stay within the block.
    _mm512_store_ps(super->scales, low_halves(_mm512_srli_epi32(column_of_words(rows, 206), 16)));
    for (size_t h = 0; h < 2; ++h) {
      __m512i first[8], second[8], high[8];
      transpose_32_bytes(rows, 64 * h, first);
      transpose_32_bytes(rows, 64 * h + 32, second);
      transpose_32_bytes(rows, 128 + 32 * h, high);
      for (size_t k = 0; k < 8; ++k) {
        put(super, 4 * h, k, _mm512_or_si512(low_nibbles(first[k]), two_bits(high[k], 0, 4)));
        put(super, 4 * h + 1, k, _mm512_or_si512(low_nibbles(second[k]), two_bits(high[k], 2, 4)));
        put(super, 4 * h + 2, k, _mm512_or_si512(high_nibbles(first[k]), two_bits(high[k], 4, 4)));
        put(super, 4 * h + 3, k, _mm512_or_si512(high_nibbles(second[k]), two_bits(high[k], 6, 4)));
      }
    }
  }
};

struct Iq4Xs {
  static constexpr TensorType kType = TensorType::kIQ4_XS;
  static constexpr size_t kBytes = 136, kGroup = 32;
  static constexpr bool kHasMin = false;
  GANGLION_INLINE void repack(const TileRows& rows, Super* super) {
    const __m512i head = column_of_words(rows, 0), low = column_of_words(rows, 4);
    _mm512_store_ps(super->scales, low_halves(head));
    const __m512i offset = _mm512_set1_epi32(-128);
    for (unsigned j = 0; j < 8; ++j) {
      const __m512i four = _mm512_and_si512(_mm512_srli_epi32(low, 4 * j), _mm512_set1_epi32(15));
      const __m512i two = _mm512_and_si512(_mm512_srli_epi32(head, 16 + 2 * j), _mm512_set1_epi32(3));
      const __m512i scale =
          _mm512_sub_epi32(_mm512_or_si512(four, _mm512_slli_epi32(two, 4)), _mm512_set1_epi32(32));
      store_512(super->sub_scales[j], scale);
      const __m512i product = _mm512_mullo_epi32(scale, offset);
      store_512(super->pairs[j],
                _mm512_mask_blend_epi16(0xaaaaaaaa, product, _mm512_slli_epi32(product, 16)));
      __m512i bytes[4];
      transpose_16_bytes(rows, 8 + 16 * j, bytes);
      for (size_t k = 0; k < 4; ++k) {
        put(super, j, k, _mm512_shuffle_epi8(iq4_codebook(), low_nibbles(bytes[k])));
        put(super, j, k + 4, _mm512_shuffle_epi8(iq4_codebook(), high_nibbles(bytes[k])));
      }
    }
  }
};

/// The activations of some tokens for one super-block.
struct Activations {
  const uint8_t* q;
  const uint8_t* scale;
  const uint8_t* sums;
  size_t stride;
};

/// Sums of codes times activations times sub-scales, of R panels and the T tokens whose values begin at q.
template <class Type, size_t R, size_t T>
GANGLION_INLINE void add_groups(const Super* panels, const uint8_t* const* q, __m512i (*totals)[T]) {
  constexpr size_t kWords = Type::kGroup / 4;
  for (size_t g = 0; g < 256 / Type::kGroup; ++g) {
    __m512i products[R][T];
    for (size_t r = 0; r < R; ++r) {
      for (size_t i = 0; i < T; ++i) products[r][i] = _mm512_setzero_si512();
    }
    for (size_t k = 0; k < kWords; ++k) {
      __m512i codes[R];
      for (size_t r = 0; r < R; ++r) codes[r] = _mm512_load_si512(panels[r].codes[g * kWords + k]);
      for (size_t i = 0; i < T; ++i) {
        const __m512i four = _mm512_set1_epi32(load_i32(q[i] + 4 * (g * kWords + k)));
        for (size_t r = 0; r < R; ++r) products[r][i] = _mm512_dpbusd_epi32(products[r][i], codes[r], four);
      }
    }
    for (size_t r = 0; r < R; ++r) {
      const __m512i scale = _mm512_load_si512(panels[r].sub_scales[g]);
      for (size_t i = 0; i < T; ++i) {
        totals[r][i] = _mm512_add_epi32(totals[r][i], _mm512_mullo_epi32(products[r][i], scale));
      }
    }
  }
}

/// Adds the products of the pairs with the sums of activations.
template <size_t R, size_t T>
GANGLION_INLINE void add_pairs_of_groups(const Super* panels, const uint8_t* sums, size_t stride,
                                         __m512i (*totals)[T]) {
  for (size_t g = 0; g < 8; ++g) {
    __m512i pairs[R];
    for (size_t r = 0; r < R; ++r) pairs[r] = _mm512_load_si512(panels[r].pairs[g]);
    for (size_t i = 0; i < T; ++i) {
      const __m512i two = _mm512_set1_epi32(load_i32(sums + i * stride + 4 * g));
      for (size_t r = 0; r < R; ++r) totals[r][i] = _mm512_dpwssd_epi32(totals[r][i], pairs[r], two);
    }
  }
}

/// T tokens from t on, whose activations are x, times one super-block of R panels, into lane `lane`.
template <class Type, size_t R, size_t T>
void multiply(const Activations& x, size_t lane, size_t t, Scratch* scratch) {
  const uint8_t* q[T];
  __m512i totals[R][T], mins[R][T];
  for (size_t i = 0; i < T; ++i) {
    q[i] = x.q + (t + i) * x.stride;
    for (size_t r = 0; r < R; ++r) totals[r][i] = mins[r][i] = _mm512_setzero_si512();
  }
  prefetch_six<256>(x.q + (t + T) * x.stride, x.stride);
  add_groups<Type, R, T>(scratch->panels, q, totals);
  add_pairs_of_groups<R, T>(scratch->panels, x.sums + t * x.stride, x.stride, Type::kHasMin ? mins : totals);
  for (size_t i = 0; i < T; ++i) {
    const __m512 x_scale = _mm512_castsi512_ps(_mm512_set1_epi32(load_i32(x.scale + (t + i) * x.stride)));
    for (size_t r = 0; r < R; ++r) {
      const Super& panel = scratch->panels[r];
      float* to = scratch->lanes[r][t + i][lane];
      const __m512 scale = _mm512_mul_ps(_mm512_load_ps(panel.scales), x_scale);
      __m512 acc = _mm512_fmadd_ps(scale, _mm512_cvtepi32_ps(totals[r][i]), _mm512_load_ps(to));
      if (Type::kHasMin) {
        const __m512 min_scale = _mm512_mul_ps(_mm512_load_ps(panel.min_scales), x_scale);
        acc = _mm512_fnmadd_ps(min_scale, _mm512_cvtepi32_ps(mins[r][i]), acc);
      }
      _mm512_store_ps(to, acc);
    }
  }
}

template <class Type>
void tile(const MatmulArgs& args, size_t r0, size_t panels, size_t t0, size_t tokens, Scratch* scratch) {
  for (size_t r = 0; r < panels; ++r) memset(scratch->lanes[r], 0, tokens * sizeof(Lanes));
  const uint8_t* x0 = args.x + t0 * args.x_stride;
  const uint8_t* scales = x0 + activation_scales_offset(args.n);
  const uint8_t* sums = x0 + activation_sums_offset(ActivationForm::kQ8Block256, args.n);
  for (size_t b = 0; b < args.n / 256; ++b) {
    const Activations x = {x0 + 256 * b, scales + sizeof(float) * b, sums + 16 * sizeof(int16_t) * b,
                           args.x_stride};
    for (size_t r = 0; r < panels; ++r) {
      Type::repack(tile_rows(args, r0 + r * kTileRows, b * Type::kBytes), &scratch->panels[r]);
    }
    for_each_token_group(tokens, [&]<size_t T>(size_t t) {
      if (panels == 1) {
        multiply<Type, 1, T>(x, b % 8, t, scratch);
      } else {
        multiply<Type, kPanels, T>(x, b % 8, t, scratch);
      }
    });
  }
  for (size_t r = 0; r < panels; ++r) {
    store_lanes(args, r0 + r * kTileRows, t0, tokens, scratch->lanes[r]);
  }
}

template <class Type>
void gemm(const MatmulArgs& args) {
  if (args.tokens < kFewestTokens || args.rows == 1)
    return avx2_matmul_super()[static_cast<size_t>(Type::kType)](args);
  Scratch scratch;
  for_each_panel_tile(args, [&](size_t r0, size_t panels, size_t t0, size_t tokens) {
    tile<Type>(args, r0, panels, t0, tokens, &scratch);
  });
}

struct Table {
  MatmulFn of[kTypeSlots];
};

constexpr Table make_table() {
  Table table{};
  table.of[static_cast<size_t>(TensorType::kQ2_K)] = gemm<Q2K>;
  table.of[static_cast<size_t>(TensorType::kQ3_K)] = gemm<Q3K>;
  table.of[static_cast<size_t>(TensorType::kQ4_K)] = gemm<Q4K>;
  table.of[static_cast<size_t>(TensorType::kQ5_K)] = gemm<Q5K>;
  table.of[static_cast<size_t>(TensorType::kQ6_K)] = gemm<Q6K>;
  table.of[static_cast<size_t>(TensorType::kIQ4_XS)] = gemm<Iq4Xs>;
  return table;
}

constexpr Table kTable = make_table();

}  // namespace

const MatmulFn* avx512vnni_gemm_super() {
  return kTable.of;
}

}  // namespace ganglion::kernels

// AVX2 products of many tokens with the types of 256-element super-blocks; see gemm_small.cc for the tiles.
// Pairs of products in 16 bits are multiplied by their sub-scale and added up in 32; sub-minima, or what
// codes stand above their value, are products of int16 pairs with the sums of activations. Same bits as
// reference/matmul.cc.
#include "kernels/x86_avx2/avx2.h"
#include "kernels/x86_avx2/tiles.h"

namespace ganglion::kernels {
namespace {

/// With fewer tokens, repacking costs more than it saves (measured on Zen 3).
constexpr size_t kFewestTokens = 5;
/// Sums of two panels times three tokens stay in registers, with their totals mostly.
constexpr size_t kGroupTokens = 3;

/// One super-block of 8 rows.
struct alignas(64) Super {
  uint8_t codes[64][32];       ///< Elements 4 k to 4 k + 3 of all rows together.
  int16_t sub_scales[16][16];  ///< By group, then by row, twice; types with groups of 32 have eight.
  int16_t pairs[8][16];        ///< By row: sub-minima, or -offset * sub-scales, of two groups of 16.
  float scales[8];
  float min_scales[8];
};

struct alignas(64) Scratch {
  Super panels[kPanels];
  Lanes lanes[kPanels][kTileTokens];
};

/// Elements 32 * group + 4 k to + 3.
GANGLION_INLINE void put(Super* super, size_t group, size_t k, __m256i codes) {
  store_256(super->codes[8 * group + k], codes);
}

/// Bytes `first` and `second` of each lane as int16, signed.
GANGLION_INLINE __m256i bytes_of_lanes(__m256i words, int first, int second) {
  const int pick = 0x80 | first << 8 | 0x80 << 16 | static_cast<int>(static_cast<unsigned>(second) << 24);
  const __m256i lanes =
      _mm256_set_epi32(0x0c000c00, 0x08000800, 0x04000400, 0, 0x0c000c00, 0x08000800, 0x04000400, 0);
  const __m256i order = _mm256_add_epi8(_mm256_set1_epi32(pick), lanes);
  return _mm256_srai_epi16(_mm256_shuffle_epi8(words, order), 8);
}

/// Sub-scales of 16 groups as four words of int8, and their products with -2^kOffsetLog2.
template <int kOffsetLog2>
GANGLION_INLINE void put_16_scales(const __m256i* words, Super* super) {
  for (int g = 0; g < 16; ++g) {
    store_256(super->sub_scales[g], bytes_of_lanes(words[g / 4], g % 4, g % 4));
  }
  for (int i = 0; i < 8; ++i) {
    const int first = 2 * (i % 2);
    const __m256i two = bytes_of_lanes(words[i / 2], first, first + 1);
    const __m256i offsets = _mm256_slli_epi16(two, kOffsetLog2);
    store_256(super->pairs[i], _mm256_sub_epi16(_mm256_setzero_si256(), offsets));
  }
}

/// Scales and minima of Q4_K and Q5_K: 12 bytes of eight 6-bit pairs, for groups of 32.
GANGLION_INLINE void put_k_scales(const PanelRows& rows, size_t at, Super* super) {
  const __m256i first = column_of_words(rows, at), second = column_of_words(rows, at + 4);
  const __m256i third = column_of_words(rows, at + 8);
  const __m256i six = _mm256_set1_epi8(63), top = _mm256_set1_epi8(0x30);
  const __m256i scales[2] = {
      _mm256_and_si256(first, six),
      _mm256_or_si256(low_nibbles(third), _mm256_and_si256(_mm256_srli_epi32(first, 2), top))};
  const __m256i mins[2] = {
      _mm256_and_si256(second, six),
      _mm256_or_si256(high_nibbles(third), _mm256_and_si256(_mm256_srli_epi32(second, 2), top))};
  for (int g = 0; g < 8; ++g) {
    store_256(super->sub_scales[g], bytes_of_lanes(scales[g / 4], g % 4, g % 4));
    store_256(super->pairs[g], bytes_of_lanes(mins[g / 4], g % 4, g % 4));
  }
}

GANGLION_INLINE void put_scales_and_mins(const PanelRows& rows, size_t at, Super* super) {
  const __m256i words = column_of_words(rows, at);
  _mm256_store_ps(super->scales, low_halves(words));
  _mm256_store_ps(super->min_scales, high_halves(words));
}

/// Bits [shift, shift + 2) of each byte, moved to bits [to, to + 2).
GANGLION_INLINE __m256i two_bits(__m256i bytes, int shift, int to) {
  const __m256i moved =
      shift >= to ? _mm256_srli_epi16(bytes, shift - to) : _mm256_slli_epi16(bytes, to - shift);
  return _mm256_and_si256(moved, _mm256_set1_epi8(static_cast<char>(3 << to)));
}
GANGLION_INLINE __m256i one_bit(__m256i bytes, int bit, int to) {
  const __m256i moved = bit >= to ? _mm256_srli_epi16(bytes, bit - to) : _mm256_slli_epi16(bytes, to - bit);
  return _mm256_and_si256(moved, _mm256_set1_epi8(static_cast<char>(1 << to)));
}

// Each type: its bytes; the size of its groups; its largest code; whether it has
// minima.
struct Q2K {
  static constexpr TensorType kType = TensorType::kQ2_K;
  static constexpr size_t kBytes = 84, kGroup = 16;
  static constexpr int kLargest = 3;
  static constexpr bool kHasMin = true;
  GANGLION_INLINE void repack(const PanelRows& rows, Super* super) {
    __m256i words[4];
    transpose_16_bytes(rows, 0, words);
    for (int g = 0; g < 16; ++g) {
      store_256(super->sub_scales[g], bytes_of_lanes(low_nibbles(words[g / 4]), g % 4, g % 4));
    }
    for (int i = 0; i < 8; ++i) {
      const int first = 2 * (i % 2);
      store_256(super->pairs[i], bytes_of_lanes(high_nibbles(words[i / 2]), first, first + 1));
    }
    put_scales_and_mins(rows, 80, super);
    for (size_t h = 0; h < 2; ++h) {
      __m256i bytes[8];
      transpose_32_bytes(rows, 16 + 32 * h, bytes);
      for (size_t k = 0; k < 8; ++k) {
        for (int j = 0; j < 4; ++j)
          put(super, 4 * h + static_cast<size_t>(j), k, two_bits(bytes[k], 2 * j, 0));
      }
    }
  }
};

struct Q3K {
  static constexpr TensorType kType = TensorType::kQ3_K;
  static constexpr size_t kBytes = 110, kGroup = 16;
  static constexpr int kLargest = 7;
  static constexpr bool kHasMin = false;
  GANGLION_INLINE void repack(const PanelRows& rows, Super* super) {
    const __m256i first = column_of_words(rows, 96), second = column_of_words(rows, 100);
    const __m256i third = column_of_words(rows, 104), above = _mm256_set1_epi8(32);
    const __m256i words[4] = {
        _mm256_sub_epi8(_mm256_or_si256(low_nibbles(first), two_bits(third, 0, 4)), above),
        _mm256_sub_epi8(_mm256_or_si256(low_nibbles(second), two_bits(third, 2, 4)), above),
        _mm256_sub_epi8(_mm256_or_si256(high_nibbles(first), two_bits(third, 4, 4)), above),
        _mm256_sub_epi8(_mm256_or_si256(high_nibbles(second), two_bits(third, 6, 4)), above)};
    put_16_scales<2>(words, super);
    // The scale is in the last two bytes: words are read from two bytes earlier, to stay within the block.
    _mm256_store_ps(super->scales, high_halves(column_of_words(rows, 106)));
    __m256i high[8];
    transpose_32_bytes(rows, 0, high);
    for (int h = 0; h < 2; ++h) {
      __m256i bytes[8];
      transpose_32_bytes(rows, 32 + 32 * static_cast<size_t>(h), bytes);
      for (size_t k = 0; k < 8; ++k) {
        for (int j = 4 * h; j < 4 * h + 4; ++j) {
          const __m256i low = two_bits(bytes[k], 2 * (j % 4), 0);
          put(super, static_cast<size_t>(j), k, _mm256_or_si256(low, one_bit(high[k], j, 2)));
        }
      }
    }
  }
};

struct Q4K {
  static constexpr TensorType kType = TensorType::kQ4_K;
  static constexpr size_t kBytes = 144, kGroup = 32;
  static constexpr int kLargest = 15;
  static constexpr bool kHasMin = true;
  GANGLION_INLINE void repack(const PanelRows& rows, Super* super) {
    put_scales_and_mins(rows, 0, super);
    put_k_scales(rows, 4, super);
    for (size_t j = 0; j < 4; ++j) {
      __m256i bytes[8];
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
  static constexpr int kLargest = 31;
  static constexpr bool kHasMin = true;
  GANGLION_INLINE void repack(const PanelRows& rows, Super* super) {
    put_scales_and_mins(rows, 0, super);
    put_k_scales(rows, 4, super);
    __m256i high[8];
    transpose_32_bytes(rows, 16, high);
    for (int j = 0; j < 4; ++j) {
      const size_t pair = static_cast<size_t>(j);
      __m256i bytes[8];
      transpose_32_bytes(rows, 48 + 32 * pair, bytes);
      for (size_t k = 0; k < 8; ++k) {
        put(super, 2 * pair, k, _mm256_or_si256(low_nibbles(bytes[k]), one_bit(high[k], 2 * j, 4)));
        put(super, 2 * pair + 1, k, _mm256_or_si256(high_nibbles(bytes[k]), one_bit(high[k], 2 * j + 1, 4)));
      }
    }
  }
};

struct Q6K {
  static constexpr TensorType kType = TensorType::kQ6_K;
  static constexpr size_t kBytes = 210, kGroup = 16;
  static constexpr int kLargest = 63;
  static constexpr bool kHasMin = false;
  GANGLION_INLINE void repack(const PanelRows& rows, Super* super) {
    __m256i words[4];
    transpose_16_bytes(rows, 192, words);
    put_16_scales<5>(words, super);
    // The scale is in the last two bytes: words are read from two bytes earlier, to stay within the block.
    _mm256_store_ps(super->scales, high_halves(column_of_words(rows, 206)));
    for (size_t h = 0; h < 2; ++h) {
      __m256i first[8], second[8], high[8];
      transpose_32_bytes(rows, 64 * h, first);
      transpose_32_bytes(rows, 64 * h + 32, second);
      transpose_32_bytes(rows, 128 + 32 * h, high);
      for (size_t k = 0; k < 8; ++k) {
        put(super, 4 * h, k, _mm256_or_si256(low_nibbles(first[k]), two_bits(high[k], 0, 4)));
        put(super, 4 * h + 1, k, _mm256_or_si256(low_nibbles(second[k]), two_bits(high[k], 2, 4)));
        put(super, 4 * h + 2, k, _mm256_or_si256(high_nibbles(first[k]), two_bits(high[k], 4, 4)));
        put(super, 4 * h + 3, k, _mm256_or_si256(high_nibbles(second[k]), two_bits(high[k], 6, 4)));
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

/// Adds groups' codes times activations times sub-scales, of R panels and T tokens; asks for what lies at
/// `ahead`, if that is not null, meanwhile.
template <class Type, size_t R, size_t T>
GANGLION_INLINE void add_groups(const Super* panels, const uint8_t* const* q, const uint8_t* ahead,
                                __m256i (*totals)[T]) {
  // Steps of four elements whose sums of pairs fit into 16 bits: 2 * code * 127 each.
  constexpr size_t kFit = 32767 / (2 * Type::kLargest * 127);
  constexpr size_t kSteps = kFit >= 8 && Type::kGroup == 32 ? 8 : kFit >= 4 ? 4 : 2;
  constexpr size_t kAhead = R * kPanelRows * Type::kBytes * kSteps / 64;
  for (size_t s = 0; s < 64; s += kSteps) {
    if (ahead != nullptr) prefetch<kAhead>(ahead + s / kSteps * kAhead);
    __m256i sums[R][T];
    for (size_t r = 0; r < R; ++r) {
      for (size_t i = 0; i < T; ++i) sums[r][i] = _mm256_setzero_si256();
    }
    // Unrolled altogether, GCC 12 loads everything first and spills it.
#pragma GCC unroll 2
    for (size_t k = s; k < s + kSteps; ++k) {
      __m256i codes[R];
      for (size_t r = 0; r < R; ++r) codes[r] = aligned_256(panels[r].codes[k]);
      for (size_t i = 0; i < T; ++i) {
        const __m256i four = _mm256_set1_epi32(load_i32(q[i] + 4 * k));
        for (size_t r = 0; r < R; ++r) {
          sums[r][i] = _mm256_add_epi16(sums[r][i], _mm256_maddubs_epi16(codes[r], four));
        }
      }
    }
    for (size_t r = 0; r < R; ++r) {
      const __m256i scale = aligned_256(panels[r].sub_scales[4 * s / Type::kGroup]);
      for (size_t i = 0; i < T; ++i) {
        totals[r][i] = _mm256_add_epi32(totals[r][i], _mm256_madd_epi16(sums[r][i], scale));
      }
    }
  }
}

/// The products of the pairs with the sums of activations.
template <size_t R, size_t T>
GANGLION_INLINE void pair_products(const Super* panels, const uint8_t* sums, size_t stride,
                                   __m256i (*products)[T]) {
  for (size_t r = 0; r < R; ++r) {
    for (size_t i = 0; i < T; ++i) products[r][i] = _mm256_setzero_si256();
  }
  for (size_t g = 0; g < 8; ++g) {
    for (size_t i = 0; i < T; ++i) {
      const __m256i two = _mm256_set1_epi32(load_i32(sums + i * stride + 4 * g));
      for (size_t r = 0; r < R; ++r) {
        const __m256i product = _mm256_madd_epi16(aligned_256(panels[r].pairs[g]), two);
        products[r][i] = _mm256_add_epi32(products[r][i], product);
      }
    }
  }
}

/// T tokens from t on, whose activations are x, times one super-block of R panels, into lane `lane`.
template <class Type, size_t R, size_t T>
[[gnu::noinline]] void multiply(const Activations& x, size_t lane, size_t t, const uint8_t* ahead,
                                Scratch* scratch) {
  const uint8_t* q[T];
  for (size_t i = 0; i < T; ++i) q[i] = x.q + (t + i) * x.stride;
  prefetch_group<256, kGroupTokens>(q[0] + T * x.stride, x.stride);
  __m256i totals[R][T], pairs[R][T];
  for (size_t r = 0; r < R; ++r) {
    for (size_t i = 0; i < T; ++i) totals[r][i] = _mm256_setzero_si256();
  }
  add_groups<Type, R, T>(scratch->panels, q, t == 0 ? ahead : nullptr, totals);
  pair_products<R, T>(scratch->panels, x.sums + t * x.stride, x.stride, pairs);
  for (size_t i = 0; i < T; ++i) {
    const __m256 x_scale = _mm256_castsi256_ps(_mm256_set1_epi32(load_i32(x.scale + (t + i) * x.stride)));
    for (size_t r = 0; r < R; ++r) {
      const Super& panel = scratch->panels[r];
      float* to = scratch->lanes[r][t + i][lane];
      if (!Type::kHasMin) totals[r][i] = _mm256_add_epi32(totals[r][i], pairs[r][i]);
      const __m256 scale = _mm256_mul_ps(_mm256_load_ps(panel.scales), x_scale);
      __m256 acc = _mm256_fmadd_ps(scale, _mm256_cvtepi32_ps(totals[r][i]), _mm256_load_ps(to));
      if (Type::kHasMin) {
        const __m256 min_scale = _mm256_mul_ps(_mm256_load_ps(panel.min_scales), x_scale);
        acc = _mm256_fnmadd_ps(min_scale, _mm256_cvtepi32_ps(pairs[r][i]), acc);
      }
      _mm256_store_ps(to, acc);
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
      Type::repack(panel_rows(args, r0 + r * kPanelRows, b * Type::kBytes), &scratch->panels[r]);
    }
    const uint8_t* ahead = next_rows(args, r0, panels * kPanelRows, b, args.n / 256, Type::kBytes);
    for_each_token_group<kGroupTokens>(tokens, [&]<size_t T>(size_t t) {
      if (panels == 1) {
        multiply<Type, 1, T>(x, b % 8, t, ahead, scratch);
      } else {
        multiply<Type, kPanels, T>(x, b % 8, t, ahead, scratch);
      }
    });
  }
  for (size_t r = 0; r < panels; ++r) {
    store_lanes(args, r0 + r * kPanelRows, t0, tokens, scratch->lanes[r]);
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

// IQ4_XS has signed codes of eight bits: its sums would not fit into 16 bits.
constexpr Table make_table() {
  Table table{};
  table.of[static_cast<size_t>(TensorType::kQ2_K)] = gemm<Q2K>;
  table.of[static_cast<size_t>(TensorType::kQ3_K)] = gemm<Q3K>;
  table.of[static_cast<size_t>(TensorType::kQ4_K)] = gemm<Q4K>;
  table.of[static_cast<size_t>(TensorType::kQ5_K)] = gemm<Q5K>;
  table.of[static_cast<size_t>(TensorType::kQ6_K)] = gemm<Q6K>;
  return table;
}

constexpr Table kTable = make_table();

}  // namespace

const MatmulFn* avx2_gemm_super() {
  return kTable.of;
}

}  // namespace ganglion::kernels

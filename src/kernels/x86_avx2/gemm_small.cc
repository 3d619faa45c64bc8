// AVX2 products of many tokens with the types of 32-element blocks: tiles of up to 16 rows, repacked on the
// stack so that one vpmaddubsw multiplies four elements of eight rows; an activation is broadcast to all
// rows. Codes that are small enough are added up in 16 bits. x86_avxvnni/ compiles this file again, for
// vpdpbusd. Same bits as reference/matmul.cc.
#include "kernels/x86_avx2/avx2.h"
#include "kernels/x86_avx2/tiles.h"

namespace ganglion::kernels {
namespace {

/// Blocks repacked at once, a multiple of the eight lanes of the contract: two panels of them stay in the
/// first-level cache for all tokens of a tile.
constexpr size_t kPieceBlocks = 16;

/// Sums of two panels times four tokens stay in registers, with what they are made of.
constexpr size_t kGroupTokens = 4;

/// Blocks of 8 rows.
struct Panel {
  uint8_t codes[kPieceBlocks][8][32];  ///< Of a block, elements 4 k to 4 k + 3 of all rows together.
  float scales[kPieceBlocks][kPanelRows];
  float mins[kPieceBlocks][kPanelRows];
};

struct alignas(64) Scratch {
  Panel panels[kPanels];
  Lanes lanes[kPanels][kTileTokens];
  /// Per token and block: -kOffset * sum of the activations, or that sum as a float for types with a minimum.
  int32_t sums[kTileTokens][kPieceBlocks];
};

GANGLION_INLINE void put_nibbles(const PanelRows& rows, size_t at, __m256i* codes) {
  __m256i bytes[4];
  transpose_16_bytes(rows, at, bytes);
  for (size_t k = 0; k < 4; ++k) {
    codes[k] = low_nibbles(bytes[k]);
    codes[k + 4] = high_nibbles(bytes[k]);
  }
}

/// Adds 16 to codes whose bit in their row's 32-bit word is set.
GANGLION_INLINE void add_fifth_bits(__m256i words, __m256i* codes) {
  const __m256i bits[2] = {_mm256_set1_epi32(0x08040201), _mm256_set1_epi32(static_cast<int>(0x80402010u))};
  const __m256i spread =
      _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12));
  for (size_t k = 0; k < 8; ++k) {
    const __m256i place = _mm256_add_epi8(spread, _mm256_set1_epi8(static_cast<char>(k / 2)));
    const __m256i set = _mm256_and_si256(_mm256_shuffle_epi8(words, place), bits[k % 2]);
    const __m256i sixteen = _mm256_and_si256(_mm256_cmpeq_epi8(set, bits[k % 2]), _mm256_set1_epi8(16));
    codes[k] = _mm256_or_si256(codes[k], sixteen);
  }
}

GANGLION_INLINE void look_up(__m128i values, __m256i* codes) {
  const __m256i table = _mm256_broadcastsi128_si256(values);
  for (size_t k = 0; k < 8; ++k) codes[k] = _mm256_shuffle_epi8(table, codes[k]);
}

/// `kOffset`: what codes stand above their value. `kLargest` code; 0 where codes are signed values.
template <TensorType kTypeIn, size_t kBytesIn, int kOffsetIn, int kLargest, bool kHasMinIn>
struct Traits {
  static constexpr TensorType kType = kTypeIn;
  static constexpr size_t kBytes = kBytesIn;
  static constexpr int kOffset = kOffsetIn;
  static constexpr bool kSigned = kLargest == 0;
  static constexpr bool kHasMin = kHasMinIn;
  /// With fewer tokens, repacking costs more than it saves (measured on Zen 3).
  static constexpr size_t kFewestTokens = kSigned ? 5 : 3;
  /// Steps of four elements whose sums fit into 16 bits: 2 * code * 127 each.
  static constexpr size_t kSteps = kSigned ? 1 : 8 * 2 * kLargest * 127 < 32768 ? 8 : 4;
  GANGLION_INLINE __m256 scales(__m256i head) { return low_halves(head); }
};

// Each type: the codes of one block of 8 rows, and its scales, given the first 32 bits of the block.
struct Q4_0 : Traits<TensorType::kQ4_0, 18, 8, 15, false> {
  GANGLION_INLINE void codes(const PanelRows& rows, size_t at, __m256i* codes) {
    put_nibbles(rows, at + 2, codes);
  }
};

struct Q4_1 : Traits<TensorType::kQ4_1, 20, 0, 15, true> {
  GANGLION_INLINE void codes(const PanelRows& rows, size_t at, __m256i* codes) {
    put_nibbles(rows, at + 4, codes);
  }
};

struct Q5_0 : Traits<TensorType::kQ5_0, 22, 16, 31, false> {
  GANGLION_INLINE void codes(const PanelRows& rows, size_t at, __m256i* codes) {
    put_nibbles(rows, at + 6, codes);
    add_fifth_bits(column_of_words(rows, at + 2), codes);
  }
};

struct Q5_1 : Traits<TensorType::kQ5_1, 24, 0, 31, true> {
  GANGLION_INLINE void codes(const PanelRows& rows, size_t at, __m256i* codes) {
    put_nibbles(rows, at + 8, codes);
    add_fifth_bits(column_of_words(rows, at + 4), codes);
  }
};

struct Q8_0 : Traits<TensorType::kQ8_0, 34, 0, 0, false> {
  GANGLION_INLINE void codes(const PanelRows& rows, size_t at, __m256i* codes) {
    transpose_32_bytes(rows, at + 2, codes);
  }
};

struct Iq4Nl : Traits<TensorType::kIQ4_NL, 18, 0, 0, false> {
  GANGLION_INLINE void codes(const PanelRows& rows, size_t at, __m256i* codes) {
    put_nibbles(rows, at + 2, codes);
    look_up(_mm_setr_epi8(-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113), codes);
  }
};

struct Mxfp4 : Traits<TensorType::kMXFP4, 17, 12, 24, false> {
  GANGLION_INLINE void codes(const PanelRows& rows, size_t at, __m256i* codes) {
    put_nibbles(rows, at + 1, codes);
    // The doubled E2M1 values, 12 higher.
    look_up(_mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0), codes);
  }
  /// Half the power of two of an E8M0 exponent; the two lowest are subnormal.
  GANGLION_INLINE __m256 scales(__m256i head) {
    const __m256i e = _mm256_and_si256(head, _mm256_set1_epi32(255));
    const __m256i normal = _mm256_slli_epi32(_mm256_sub_epi32(e, _mm256_set1_epi32(1)), 23);
    const __m256i subnormal = _mm256_sllv_epi32(_mm256_set1_epi32(0x00200000), e);
    const __m256i low = _mm256_cmpgt_epi32(_mm256_set1_epi32(2), e);
    return _mm256_castsi256_ps(_mm256_blendv_epi8(normal, subnormal, low));
  }
};

template <class Type>
void repack(const MatmulArgs& args, size_t r0, size_t b0, size_t count, Panel* panel) {
  const PanelRows rows = panel_rows(args, r0, b0 * Type::kBytes);
  for (size_t b = 0; b < count; ++b) {
    __m256i codes[8];
    Type::codes(rows, b * Type::kBytes, codes);
    for (size_t k = 0; k < 8; ++k) store_256(panel->codes[b][k], codes[k]);
    const __m256i head = column_of_words(rows, b * Type::kBytes);
    _mm256_store_ps(panel->scales[b], Type::scales(head));
    if (Type::kHasMin) _mm256_store_ps(panel->mins[b], high_halves(head));
  }
}

/// A piece of the activations of some tokens: where their values, scales and sums begin.
struct Activations {
  const uint8_t* q;
  const uint8_t* scales;
  const uint8_t* sums;
  size_t stride;
};

template <class Type>
void take_sums(const Activations& x, size_t tokens, int32_t (*sums)[kPieceBlocks]) {
  // Rows end on a multiple of 64 bytes and pieces begin on one of 32: 16 sums are always there to read.
  for (size_t t = 0; t < tokens; ++t) {
    for (size_t b = 0; b < kPieceBlocks; b += 8) {
      const __m256i of_blocks = _mm256_cvtepi16_epi32(load_128(x.sums + t * x.stride + b * sizeof(int16_t)));
      store_256(sums[t] + b, Type::kHasMin
                                 ? _mm256_castps_si256(_mm256_cvtepi32_ps(of_blocks))
                                 : _mm256_mullo_epi32(of_blocks, _mm256_set1_epi32(-Type::kOffset)));
    }
  }
}

#ifdef __AVXVNNI__
/// Adds the products of block b of R panels with T tokens.
template <class Type, size_t R, size_t T>
GANGLION_INLINE void add_products(const Panel* panels, const uint8_t* const* q, size_t b,
                                  __m256i (*products)[T]) {
#pragma GCC unroll 2
  for (size_t k = 0; k < 8; ++k) {
    __m256i codes[R];
    for (size_t r = 0; r < R; ++r) codes[r] = aligned_256(panels[r].codes[b][k]);
    for (size_t i = 0; i < T; ++i) {
      const __m256i four = _mm256_set1_epi32(load_i32(q[i] + 32 * b + 4 * k));
      for (size_t r = 0; r < R; ++r)
        products[r][i] = add_fours<Type::kSigned>(products[r][i], codes[r], four);
    }
  }
}
#else
/// Products of steps [k0, k0 + kSteps) of block b of R panels with T tokens, as sums of pairs in 16 bits.
template <class Type, size_t R, size_t T>
GANGLION_INLINE void pair_sums(const Panel* panels, const uint8_t* const* q, size_t b, size_t k0,
                               __m256i (*sums)[T]) {
  for (size_t r = 0; r < R; ++r) {
    for (size_t i = 0; i < T; ++i) sums[r][i] = _mm256_setzero_si256();
  }
  // Unrolled altogether, GCC 12 loads everything first and spills it: a quarter slower.
#pragma GCC unroll 2
  for (size_t k = 0; k < Type::kSteps; ++k) {
    __m256i codes[R];
    for (size_t r = 0; r < R; ++r) codes[r] = aligned_256(panels[r].codes[b][k0 + k]);
    for (size_t i = 0; i < T; ++i) {
      const __m256i four = _mm256_set1_epi32(load_i32(q[i] + 32 * b + 4 * (k0 + k)));
      for (size_t r = 0; r < R; ++r) {
        // |activation| <= 127 and |value| <= 128, so that two products fit into 16 bits.
        const __m256i product =
            Type::kSigned ? _mm256_maddubs_epi16(_mm256_abs_epi8(codes[r]), _mm256_sign_epi8(four, codes[r]))
                          : _mm256_maddubs_epi16(codes[r], four);
        sums[r][i] = _mm256_add_epi16(sums[r][i], product);
      }
    }
  }
}

/// Adds the products of block b of R panels with T tokens.
template <class Type, size_t R, size_t T>
GANGLION_INLINE void add_products(const Panel* panels, const uint8_t* const* q, size_t b,
                                  __m256i (*products)[T]) {
  for (size_t k = 0; k < 8; k += Type::kSteps) {
    __m256i sums[R][T];
    pair_sums<Type, R, T>(panels, q, b, k, sums);
    for (size_t i = 0; i < T; ++i) {
      for (size_t r = 0; r < R; ++r) {
        const __m256i four = _mm256_madd_epi16(sums[r][i], _mm256_set1_epi16(1));
        products[r][i] = _mm256_add_epi32(products[r][i], four);
      }
    }
  }
}
#endif

/// T tokens from t on, whose activations are x, times block b of R panels.
template <class Type, size_t R, size_t T>
GANGLION_INLINE void multiply_block(const uint8_t* const* q, const uint8_t* x_scales, size_t stride, size_t b,
                                    size_t t, Scratch* scratch) {
  __m256i products[R][T];
  for (size_t i = 0; i < T; ++i) {
    const __m256i first = Type::kOffset ? _mm256_set1_epi32(scratch->sums[t + i][b]) : _mm256_setzero_si256();
    for (size_t r = 0; r < R; ++r) products[r][i] = first;
  }
  add_products<Type, R, T>(scratch->panels, q, b, products);
  for (size_t i = 0; i < T; ++i) {
    const __m256 x_scale = _mm256_castsi256_ps(_mm256_set1_epi32(load_i32(x_scales + i * stride + 4 * b)));
    for (size_t r = 0; r < R; ++r) {
      float* lane = scratch->lanes[r][t + i][b % 8];
      const __m256 scale = _mm256_mul_ps(_mm256_load_ps(scratch->panels[r].scales[b]), x_scale);
      __m256 acc = _mm256_fmadd_ps(scale, _mm256_cvtepi32_ps(products[r][i]), _mm256_load_ps(lane));
      if (Type::kHasMin) {
        const __m256 min = _mm256_mul_ps(_mm256_load_ps(scratch->panels[r].mins[b]), x_scale);
        const __m256 sum = _mm256_castsi256_ps(_mm256_set1_epi32(scratch->sums[t + i][b]));
        acc = _mm256_fmadd_ps(min, sum, acc);
      }
      _mm256_store_ps(lane, acc);
    }
  }
}

/// T tokens from t on times blocks [b0, b0 + count) of R panels, whose first row is r0.
template <class Type, size_t R, size_t T>
[[gnu::noinline]] void multiply(const MatmulArgs& args, size_t r0, size_t b0, size_t count,
                                const Activations& x, size_t t, Scratch* scratch) {
  const uint8_t* q[T];
  for (size_t i = 0; i < T; ++i) q[i] = x.q + (t + i) * x.stride;
  const uint8_t* x_scales = x.scales + t * x.stride;
  prefetch_group<32 * kPieceBlocks, kGroupTokens>(q[0] + T * x.stride, x.stride);
  prefetch_group<64, kGroupTokens>(x_scales + T * x.stride, x.stride);
  constexpr size_t kRows = R * kPanelRows;
  for (size_t b = 0; b < count; ++b) {
    const uint8_t* ahead = t == 0 ? next_rows(args, r0, kRows, b0 + b, args.n / 32, Type::kBytes) : nullptr;
    if (ahead != nullptr) prefetch<kRows * Type::kBytes>(ahead);
    multiply_block<Type, R, T>(q, x_scales, x.stride, b, t, scratch);
  }
}

template <class Type>
void tile(const MatmulArgs& args, size_t r0, size_t panels, size_t t0, size_t tokens, Scratch* scratch) {
  for (size_t r = 0; r < panels; ++r) memset(scratch->lanes[r], 0, tokens * sizeof(Lanes));
  const size_t blocks = args.n / 32;
  const uint8_t* x0 = args.x + t0 * args.x_stride;
  const uint8_t* scales = x0 + activation_scales_offset(args.n);
  const uint8_t* sums = x0 + activation_sums_offset(ActivationForm::kQ8Block32, args.n);
  for (size_t b0 = 0; b0 < blocks; b0 += kPieceBlocks) {
    const size_t count = blocks - b0 < kPieceBlocks ? blocks - b0 : kPieceBlocks;
    const Activations x = {x0 + 32 * b0, scales + sizeof(float) * b0, sums + sizeof(int16_t) * b0,
                           args.x_stride};
    for (size_t r = 0; r < panels; ++r) {
      repack<Type>(args, r0 + r * kPanelRows, b0, count, &scratch->panels[r]);
    }
    if (Type::kHasMin || Type::kOffset) take_sums<Type>(x, tokens, scratch->sums);
    for_each_token_group<kGroupTokens>(tokens, [&]<size_t T>(size_t t) {
      if (panels == 1) {
        multiply<Type, 1, T>(args, r0, b0, count, x, t, scratch);
      } else {
        multiply<Type, kPanels, T>(args, r0, b0, count, x, t, scratch);
      }
    });
  }
  for (size_t r = 0; r < panels; ++r) {
    store_lanes(args, r0 + r * kPanelRows, t0, tokens, scratch->lanes[r]);
  }
}

template <class Type>
void gemm(const MatmulArgs& args) {
  if (args.tokens < Type::kFewestTokens || args.rows == 1)
    return GANGLION_PART(matmul_small)()[static_cast<size_t>(Type::kType)](args);
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
  table.of[static_cast<size_t>(TensorType::kQ4_0)] = gemm<Q4_0>;
  table.of[static_cast<size_t>(TensorType::kQ4_1)] = gemm<Q4_1>;
  table.of[static_cast<size_t>(TensorType::kQ5_0)] = gemm<Q5_0>;
  table.of[static_cast<size_t>(TensorType::kQ5_1)] = gemm<Q5_1>;
  table.of[static_cast<size_t>(TensorType::kQ8_0)] = gemm<Q8_0>;
  table.of[static_cast<size_t>(TensorType::kIQ4_NL)] = gemm<Iq4Nl>;
  table.of[static_cast<size_t>(TensorType::kMXFP4)] = gemm<Mxfp4>;
  return table;
}

constexpr Table kTable = make_table();

}  // namespace

const MatmulFn* GANGLION_PART(gemm_small)() {
  return kTable.of;
}

}  // namespace ganglion::kernels

// AVX-512 VNNI products of many tokens with the types of 32-element blocks: tiles of 16 rows, one per lane.
// A piece of the rows is repacked on the stack so that one vpdpbusd adds four products to each row's sum; an
// activation is broadcast to all rows. Weights are unsigned codes, `kOffset` above their value; what that
// adds is taken off through the sums of activations. Same bits as reference/matmul.cc.
#include "kernels/x86_avx512vnni/avx512vnni.h"
#include "kernels/x86_avx512vnni/common.h"

namespace ganglion::kernels {
namespace {

/// Blocks repacked at once, a multiple of the eight lanes of the contract: two panels of them, 20 KiB, stay
/// in the first-level cache for all tokens of a tile.
constexpr size_t kPieceBlocks = 16;

/// Blocks of 16 rows.
struct Panel {
  uint8_t codes[kPieceBlocks][8][64];  ///< Of a block, elements 4 k to 4 k + 3 of all rows together.
  float scales[kPieceBlocks][kTileRows];
  float mins[kPieceBlocks][kTileRows];
};

struct alignas(64) Scratch {
  Panel panels[kPanels];
  Lanes lanes[kPanels][kTileTokens];
  /// Per token and block: -kOffset * sum of the activations, or that sum as a float for types with a minimum.
  int32_t sums[kTileTokens][kPieceBlocks];
};

GANGLION_INLINE void put_nibbles(const TileRows& rows, size_t at, __m512i* codes) {
  __m512i bytes[4];
  transpose_16_bytes(rows, at, bytes);
  for (size_t k = 0; k < 4; ++k) {
    codes[k] = low_nibbles(bytes[k]);
    codes[k + 4] = high_nibbles(bytes[k]);
  }
}

/// Adds 16 to codes whose bit in their row's 32-bit word is set.
GANGLION_INLINE void add_fifth_bits(__m512i bits, __m512i* codes) {
  const __m512i first = _mm512_set1_epi32(0x08040201),
                second = _mm512_set1_epi32(static_cast<int>(0x80402010u));
  const __m512i spread =
      _mm512_broadcast_i32x4(_mm_setr_epi8(0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12));
  for (size_t k = 0; k < 8; ++k) {
    const __m512i byte =
        _mm512_shuffle_epi8(bits, _mm512_add_epi8(spread, _mm512_set1_epi8(static_cast<char>(k / 2))));
    const __mmask64 set = _mm512_test_epi8_mask(byte, k % 2 ? second : first);
    codes[k] = _mm512_mask_add_epi8(codes[k], set, codes[k], _mm512_set1_epi8(16));
  }
}

template <TensorType kTypeIn, size_t kBytesIn, int kOffsetIn, bool kHasMinIn>
struct Traits {
  static constexpr TensorType kType = kTypeIn;
  static constexpr size_t kBytes = kBytesIn;
  static constexpr int kOffset = kOffsetIn;
  static constexpr bool kHasMin = kHasMinIn;
  GANGLION_INLINE __m512 scales(__m512i head) { return low_halves(head); }
};

// Each type: the codes of one block of 16 rows, and its scales, given the first 32 bits of the block.
struct Q4_0 : Traits<TensorType::kQ4_0, 18, 8, false> {
  GANGLION_INLINE void codes(const TileRows& rows, size_t at, __m512i* codes) {
    put_nibbles(rows, at + 2, codes);
  }
};

struct Q4_1 : Traits<TensorType::kQ4_1, 20, 0, true> {
  GANGLION_INLINE void codes(const TileRows& rows, size_t at, __m512i* codes) {
    put_nibbles(rows, at + 4, codes);
  }
};

struct Q5_0 : Traits<TensorType::kQ5_0, 22, 16, false> {
  GANGLION_INLINE void codes(const TileRows& rows, size_t at, __m512i* codes) {
    put_nibbles(rows, at + 6, codes);
    add_fifth_bits(column_of_words(rows, at + 2), codes);
  }
};

struct Q5_1 : Traits<TensorType::kQ5_1, 24, 0, true> {
  GANGLION_INLINE void codes(const TileRows& rows, size_t at, __m512i* codes) {
    put_nibbles(rows, at + 8, codes);
    add_fifth_bits(column_of_words(rows, at + 4), codes);
  }
};

struct Q8_0 : Traits<TensorType::kQ8_0, 34, 128, false> {
  GANGLION_INLINE void codes(const TileRows& rows, size_t at, __m512i* codes) {
    transpose_16_bytes(rows, at + 2, codes);
    transpose_16_bytes(rows, at + 18, codes + 4);
    for (size_t k = 0; k < 8; ++k) codes[k] = _mm512_xor_si512(codes[k], _mm512_set1_epi8(-128));
  }
};

struct Iq4Nl : Traits<TensorType::kIQ4_NL, 18, 128, false> {
  GANGLION_INLINE void codes(const TileRows& rows, size_t at, __m512i* codes) {
    put_nibbles(rows, at + 2, codes);
    for (size_t k = 0; k < 8; ++k) codes[k] = _mm512_shuffle_epi8(iq4_codebook(), codes[k]);
  }
};

struct Mxfp4 : Traits<TensorType::kMXFP4, 17, 12, false> {
  GANGLION_INLINE void codes(const TileRows& rows, size_t at, __m512i* codes) {
    put_nibbles(rows, at + 1, codes);
    for (size_t k = 0; k < 8; ++k) codes[k] = _mm512_shuffle_epi8(fp4_codebook(), codes[k]);
  }
  GANGLION_INLINE __m512 scales(__m512i head) { return e8m0_halves(head); }
};

template <class Type>
void repack(const MatmulArgs& args, size_t r0, size_t b0, size_t count, Panel* panel) {
  const TileRows rows = tile_rows(args, r0, b0 * Type::kBytes);
  for (size_t b = 0; b < count; ++b) {
    __m512i codes[8];
    Type::codes(rows, b * Type::kBytes, codes);
    for (size_t k = 0; k < 8; ++k) store_512(panel->codes[b][k], codes[k]);
    const __m512i head = column_of_words(rows, b * Type::kBytes);
    _mm512_store_ps(panel->scales[b], Type::scales(head));
    if (Type::kHasMin) _mm512_store_ps(panel->mins[b], low_halves(_mm512_srli_epi32(head, 16)));
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
    const __m512i of_blocks = _mm512_cvtepi16_epi32(load_256(x.sums + t * x.stride));
    const __m512i taken = Type::kHasMin ? _mm512_castps_si512(_mm512_cvtepi32_ps(of_blocks))
                                        : _mm512_mullo_epi32(of_blocks, _mm512_set1_epi32(-Type::kOffset));
    store_512(sums[t], taken);
  }
}

/// The products of block b of R panels with T tokens; they begin at what is to be taken off.
template <class Type, size_t R, size_t T>
GANGLION_INLINE void block_products(const Scratch& scratch, const uint8_t* const* q, size_t b, size_t t,
                                    __m512i (*products)[T]) {
  for (size_t i = 0; i < T; ++i) {
    const __m512i first = Type::kOffset ? _mm512_set1_epi32(scratch.sums[t + i][b]) : _mm512_setzero_si512();
    for (size_t r = 0; r < R; ++r) products[r][i] = first;
  }
  for (size_t k = 0; k < 8; ++k) {
    __m512i codes[R];
    for (size_t r = 0; r < R; ++r) codes[r] = _mm512_load_si512(scratch.panels[r].codes[b][k]);
    for (size_t i = 0; i < T; ++i) {
      const __m512i four = _mm512_set1_epi32(load_i32(q[i] + 32 * b + 4 * k));
      for (size_t r = 0; r < R; ++r) products[r][i] = _mm512_dpbusd_epi32(products[r][i], codes[r], four);
    }
  }
}

/// T tokens from t on, whose activations are x, times one piece of R panels. Lane by lane, so that the
/// accumulators stay in registers.
template <class Type, size_t R, size_t T>
void multiply(const MatmulArgs& args, size_t r0, size_t b0, const Activations& x, size_t count, size_t t,
              Scratch* scratch) {
  const uint8_t* q[T];
  for (size_t i = 0; i < T; ++i) q[i] = x.q + (t + i) * x.stride;
  const uint8_t* x_scales = x.scales + t * x.stride;
  prefetch_six<32 * kPieceBlocks>(x.q + (t + T) * x.stride, x.stride);
  prefetch_six<64>(x_scales + T * x.stride, x.stride);
  for (size_t lane = 0; lane < 8 && lane < count; ++lane) {
    __m512 acc[R][T];
    for (size_t r = 0; r < R; ++r) {
      for (size_t i = 0; i < T; ++i) acc[r][i] = _mm512_load_ps(scratch->lanes[r][t + i][lane]);
    }
    for (size_t b = lane; b < count; b += 8) {
      constexpr size_t kRows = R * kTileRows;
      const uint8_t* ahead = t == 0 ? next_rows(args, r0, kRows, b0 + b, args.n / 32, Type::kBytes) : nullptr;
      if (ahead != nullptr) prefetch<kRows * Type::kBytes>(ahead);
      __m512i products[R][T];
      block_products<Type, R, T>(*scratch, q, b, t, products);
      for (size_t i = 0; i < T; ++i) {
        const __m512 x_scale =
            _mm512_castsi512_ps(_mm512_set1_epi32(load_i32(x_scales + i * x.stride + 4 * b)));
        for (size_t r = 0; r < R; ++r) {
          const __m512 scale = _mm512_mul_ps(_mm512_load_ps(scratch->panels[r].scales[b]), x_scale);
          acc[r][i] = _mm512_fmadd_ps(scale, _mm512_cvtepi32_ps(products[r][i]), acc[r][i]);
          if (!Type::kHasMin) continue;
          const __m512 sum = _mm512_castsi512_ps(_mm512_set1_epi32(scratch->sums[t + i][b]));
          const __m512 min = _mm512_mul_ps(_mm512_load_ps(scratch->panels[r].mins[b]), x_scale);
          acc[r][i] = _mm512_fmadd_ps(min, sum, acc[r][i]);
        }
      }
    }
    for (size_t r = 0; r < R; ++r) {
      for (size_t i = 0; i < T; ++i) _mm512_store_ps(scratch->lanes[r][t + i][lane], acc[r][i]);
    }
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
      repack<Type>(args, r0 + r * kTileRows, b0, count, &scratch->panels[r]);
    }
    if (Type::kHasMin || Type::kOffset) take_sums<Type>(x, tokens, scratch->sums);
    for_each_token_group(tokens, [&]<size_t T>(size_t t) {
      if (panels == 1) {
        multiply<Type, 1, T>(args, r0, b0, x, count, t, scratch);
      } else {
        multiply<Type, kPanels, T>(args, r0, b0, x, count, t, scratch);
      }
    });
  }
  for (size_t r = 0; r < panels; ++r) {
    store_lanes(args, r0 + r * kTileRows, t0, tokens, scratch->lanes[r]);
  }
}

template <class Type>
void gemm(const MatmulArgs& args) {
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

const MatmulFn* avx512vnni_gemm_small() {
  return kTable.of;
}

}  // namespace ganglion::kernels

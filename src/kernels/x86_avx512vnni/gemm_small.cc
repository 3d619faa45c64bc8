// AVX-512 VNNI products of many tokens with the types of 32-element blocks: tiles of 16 rows, one per lane.
// A piece of the rows is repacked on the stack so that one vpdpbusd adds four products to each row's sum; an
// activation is broadcast to all rows. Weights are unsigned codes, `kOffset` above their value; what that
// adds is taken off through the sums of activations. Same bits as reference/matmul.cc.
#include "kernels/x86_avx2/avx2.h"
#include "kernels/x86_avx512vnni/avx512vnni.h"
#include "kernels/x86_avx512vnni/common.h"

namespace ganglion::kernels {
namespace {

/// Blocks repacked at once, a multiple of the eight lanes of the contract. With kTileTokens, it keeps all of
/// Scratch at 60 KiB: it lies on the stack, and in the second-level cache.
constexpr size_t kPieceBlocks = 32;

struct alignas(64) Scratch {
  uint8_t codes[kPieceBlocks][8][64];  ///< Of a block, elements 4 k to 4 k + 3 of all 16 rows together.
  float scales[kPieceBlocks][kTileRows];
  float mins[kPieceBlocks][kTileRows];
  float lanes[kTileTokens][8][kTileRows];
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
  GANGLION_INLINE void codes(const TileRows& rows, __m512i* codes) { put_nibbles(rows, 2, codes); }
};

struct Q4_1 : Traits<TensorType::kQ4_1, 20, 0, true> {
  GANGLION_INLINE void codes(const TileRows& rows, __m512i* codes) { put_nibbles(rows, 4, codes); }
};

struct Q5_0 : Traits<TensorType::kQ5_0, 22, 16, false> {
  GANGLION_INLINE void codes(const TileRows& rows, __m512i* codes) {
    put_nibbles(rows, 6, codes);
    add_fifth_bits(column_of_words(rows, 2), codes);
  }
};

struct Q5_1 : Traits<TensorType::kQ5_1, 24, 0, true> {
  GANGLION_INLINE void codes(const TileRows& rows, __m512i* codes) {
    put_nibbles(rows, 8, codes);
    add_fifth_bits(column_of_words(rows, 4), codes);
  }
};

struct Q8_0 : Traits<TensorType::kQ8_0, 34, 128, false> {
  GANGLION_INLINE void codes(const TileRows& rows, __m512i* codes) {
    transpose_16_bytes(rows, 2, codes);
    transpose_16_bytes(rows, 18, codes + 4);
    for (size_t k = 0; k < 8; ++k) codes[k] = _mm512_xor_si512(codes[k], _mm512_set1_epi8(-128));
  }
};

struct Iq4Nl : Traits<TensorType::kIQ4_NL, 18, 128, false> {
  GANGLION_INLINE void codes(const TileRows& rows, __m512i* codes) {
    put_nibbles(rows, 2, codes);
    for (size_t k = 0; k < 8; ++k) codes[k] = _mm512_shuffle_epi8(iq4_codebook(), codes[k]);
  }
};

struct Mxfp4 : Traits<TensorType::kMXFP4, 17, 12, false> {
  GANGLION_INLINE void codes(const TileRows& rows, __m512i* codes) {
    put_nibbles(rows, 1, codes);
    // The doubled E2M1 values, 12 higher.
    const __m512i values =
        _mm512_broadcast_i32x4(_mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
    for (size_t k = 0; k < 8; ++k) codes[k] = _mm512_shuffle_epi8(values, codes[k]);
  }
  /// Half the power of two of an E8M0 exponent; the two lowest are subnormal.
  GANGLION_INLINE __m512 scales(__m512i head) {
    const __m512i e = _mm512_and_si512(head, _mm512_set1_epi32(255));
    const __m512i normal = _mm512_slli_epi32(_mm512_sub_epi32(e, _mm512_set1_epi32(1)), 23);
    const __m512i subnormal = _mm512_sllv_epi32(_mm512_set1_epi32(0x00200000), e);
    const __mmask16 low = _mm512_cmplt_epi32_mask(e, _mm512_set1_epi32(2));
    return _mm512_castsi512_ps(_mm512_mask_mov_epi32(normal, low, subnormal));
  }
};

template <class Type>
void repack(const MatmulArgs& args, size_t r0, size_t b0, size_t count, Scratch* scratch) {
  TileRows rows = tile_rows(args, r0, b0 * Type::kBytes);
  for (size_t b = 0; b < count; ++b) {
    __m512i codes[8];
    Type::codes(rows, codes);
    for (size_t k = 0; k < 8; ++k) store_512(scratch->codes[b][k], codes[k]);
    const __m512i head = column_of_words(rows, 0);
    _mm512_store_ps(scratch->scales[b], Type::scales(head));
    if (Type::kHasMin) _mm512_store_ps(scratch->mins[b], low_halves(_mm512_srli_epi32(head, 16)));
    for (size_t r = 0; r < kTileRows; ++r) rows.p[r] += Type::kBytes;
  }
}

/// Where the parts of an activation row lie, in bytes.
struct Layout {
  size_t scales_at;
  size_t sums_at;
};

template <class Type>
void take_sums(const MatmulArgs& args, const Layout& layout, size_t t0, size_t tokens, size_t b0,
               size_t count, Scratch* scratch) {
  for (size_t t = 0; t < tokens; ++t) {
    const uint8_t* p = args.x + (t0 + t) * args.x_stride + layout.sums_at + b0 * sizeof(int16_t);
    // Rows end on a multiple of 64 bytes and pieces begin on one: 16 sums are always there to read.
    for (size_t b = 0; b < count; b += 16) {
      const __m512i sums = _mm512_cvtepi16_epi32(load_256(p + b * sizeof(int16_t)));
      const __m512i taken = Type::kHasMin ? _mm512_castps_si512(_mm512_cvtepi32_ps(sums))
                                          : _mm512_mullo_epi32(sums, _mm512_set1_epi32(-Type::kOffset));
      store_512(scratch->sums[t] + b, taken);
    }
  }
}

/// T tokens, whose activations begin at x and whose lanes and sums are those from t on, times one piece.
template <class Type, size_t T>
void multiply(const uint8_t* x, const Layout& layout, size_t x_stride, size_t b0, size_t count, size_t t,
              Scratch* scratch) {
  const uint8_t* q[T];
  for (size_t i = 0; i < T; ++i) q[i] = x + i * x_stride + 32 * b0;
  const uint8_t* scales = x + layout.scales_at + b0 * sizeof(float);
  for (size_t lane = 0; lane < 8 && lane < count; ++lane) {
    __m512 acc[T];
    for (size_t i = 0; i < T; ++i) acc[i] = _mm512_load_ps(scratch->lanes[t + i][lane]);
    for (size_t b = lane; b < count; b += 8) {
      __m512i products[T];
      for (size_t i = 0; i < T; ++i) {
        products[i] = Type::kOffset ? _mm512_set1_epi32(scratch->sums[t + i][b]) : _mm512_setzero_si512();
      }
      for (size_t k = 0; k < 8; ++k) {
        const __m512i codes = _mm512_load_si512(scratch->codes[b][k]);
        for (size_t i = 0; i < T; ++i) {
          const __m512i four = _mm512_set1_epi32(load_i32(q[i] + 32 * b + 4 * k));
          products[i] = _mm512_dpbusd_epi32(products[i], codes, four);
        }
      }
      const __m512 w_scales = _mm512_load_ps(scratch->scales[b]);
      for (size_t i = 0; i < T; ++i) {
        float x_scale;
        memcpy(&x_scale, scales + i * x_stride + b * sizeof(float), sizeof x_scale);
        const __m512 wide_scale = _mm512_set1_ps(x_scale);
        acc[i] =
            _mm512_fmadd_ps(_mm512_mul_ps(w_scales, wide_scale), _mm512_cvtepi32_ps(products[i]), acc[i]);
        if (Type::kHasMin) {
          const __m512 sum = _mm512_castsi512_ps(_mm512_set1_epi32(scratch->sums[t + i][b]));
          acc[i] = _mm512_fmadd_ps(_mm512_mul_ps(_mm512_load_ps(scratch->mins[b]), wide_scale), sum, acc[i]);
        }
      }
    }
    for (size_t i = 0; i < T; ++i) _mm512_store_ps(scratch->lanes[t + i][lane], acc[i]);
  }
}

template <class Type>
void tile(const MatmulArgs& args, const Layout& layout, size_t r0, size_t t0, size_t tokens,
          Scratch* scratch) {
  memset(scratch->lanes, 0, tokens * sizeof scratch->lanes[0]);
  const size_t blocks = args.n / 32;
  for (size_t b0 = 0; b0 < blocks; b0 += kPieceBlocks) {
    const size_t count = blocks - b0 < kPieceBlocks ? blocks - b0 : kPieceBlocks;
    repack<Type>(args, r0, b0, count, scratch);
    take_sums<Type>(args, layout, t0, tokens, b0, count, scratch);
    size_t t = 0;
    const auto at = [&](size_t token) { return args.x + (t0 + token) * args.x_stride; };
    for (; t + 8 <= tokens; t += 8) multiply<Type, 8>(at(t), layout, args.x_stride, b0, count, t, scratch);
    if (t + 4 <= tokens) {
      multiply<Type, 4>(at(t), layout, args.x_stride, b0, count, t, scratch);
      t += 4;
    }
    if (t + 2 <= tokens) {
      multiply<Type, 2>(at(t), layout, args.x_stride, b0, count, t, scratch);
      t += 2;
    }
    if (t < tokens) multiply<Type, 1>(at(t), layout, args.x_stride, b0, count, t, scratch);
  }
  const size_t rows = args.rows - r0 < kTileRows ? args.rows - r0 : kTileRows;
  const __mmask16 present = static_cast<__mmask16>((1u << rows) - 1);
  for (size_t t = 0; t < tokens; ++t) {
    float* out = args.out + (t0 + t) * args.out_stride + r0;
    _mm512_mask_storeu_ps(out, present, tree_of_lanes(scratch->lanes[t]));
  }
}

template <class Type>
void gemm(const MatmulArgs& args) {
  if (args.tokens < kFewestTokens) return avx2_matmul_small()[static_cast<size_t>(Type::kType)](args);
  const Layout layout = {activation_scales_offset(args.n),
                         activation_sums_offset(ActivationForm::kQ8Block32, args.n)};
  const size_t tile_tokens = token_tile(args.tokens);
  Scratch scratch;
  for (size_t t0 = 0; t0 < args.tokens; t0 += tile_tokens) {
    const size_t tokens = args.tokens - t0 < tile_tokens ? args.tokens - t0 : tile_tokens;
    for (size_t r0 = 0; r0 < args.rows; r0 += kTileRows) {
      tile<Type>(args, layout, r0, t0, tokens, &scratch);
    }
  }
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

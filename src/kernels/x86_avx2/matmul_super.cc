// AVX2 products of the types with super-blocks of 256: one int32 vector per super-block, sub-scales included;
// eight super-blocks are then summed at once, one per lane of the accumulator.
// Source of the layouts: GGUF/ggml type definitions. Same bits as reference/matmul.cc.
#include "kernels/x86_avx2/avx2.h"
#include "kernels/x86_avx2/common.h"

namespace ganglion::kernels {
namespace {

/// An unpacked super-block.
struct Super {
  __m256i codes[8];  ///< 32 elements each.
  __m256i
      scales[8];  ///< Of each 32 elements, 16 int16: eight times the first group's, eight times the second's.
  __m256i groups;  ///< 16 int16, in order: sub-minima if the type has a minimum, else sub-scales.
};

/// Spreads sub-scales: 16-bit lane j of the lower (upper) half is for the first (second) 16 of elements 32 j.
GANGLION_INLINE void spread_scales(__m256i by_half, Super* super) {
  for (int j = 0; j < 8; ++j) {
    const __m256i pick = _mm256_set1_epi16(static_cast<short>((2 * j + 1) << 8 | 2 * j));
    super->scales[j] = _mm256_shuffle_epi8(by_half, pick);
  }
}

/// Sub-scales of 16 groups, int8: even groups to the lower half, odd ones to the upper.
GANGLION_INLINE void spread_bytes(__m128i scales, Super* super) {
  const __m128i order = _mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
  spread_scales(_mm256_cvtepi8_epi16(_mm_shuffle_epi8(scales, order)), super);
}

/// The 2-bit fields at `shift` of 32 bytes.
template <int kShift>
GANGLION_INLINE __m256i two_bits(__m256i bytes) {
  return _mm256_and_si256(_mm256_srli_epi16(bytes, kShift), _mm256_set1_epi8(3));
}

/// Bit `kBit` of 32 bytes, moved to bit `kTo`.
template <int kBit, int kTo>
GANGLION_INLINE __m256i move_bit(__m256i bytes) {
  const __m256i moved = kBit >= kTo ? _mm256_srli_epi16(bytes, kBit >= kTo ? kBit - kTo : 0)
                                    : _mm256_slli_epi16(bytes, kBit < kTo ? kTo - kBit : 0);
  return _mm256_and_si256(moved, _mm256_set1_epi8(1 << kTo));
}

GANGLION_INLINE void unpack_two_bits(const uint8_t* p, Super* super) {
  for (int h = 0; h < 2; ++h) {
    const __m256i bytes = load_256(p + 32 * h);
    super->codes[4 * h] = two_bits<0>(bytes);
    super->codes[4 * h + 1] = two_bits<2>(bytes);
    super->codes[4 * h + 2] = two_bits<4>(bytes);
    super->codes[4 * h + 3] = two_bits<6>(bytes);
  }
}

/// Scales and minima of Q4_K and Q5_K: 12 bytes of eight 6-bit pairs, for groups of 32.
GANGLION_INLINE void unpack_k_scales(const uint8_t* p, Super* super) {
  const uint32_t first = static_cast<uint32_t>(load_i32(p));
  const uint32_t second = static_cast<uint32_t>(load_i32(p + 4));
  const uint32_t third = static_cast<uint32_t>(load_i32(p + 8));
  const uint32_t high_scales = (third & 0x0f0f0f0fu) | ((first >> 2) & 0x30303030u);
  const uint32_t high_mins = ((third >> 4) & 0x0f0f0f0fu) | ((second >> 2) & 0x30303030u);
  const __m128i bytes = _mm_setr_epi32(static_cast<int>(first & 0x3f3f3f3fu), static_cast<int>(high_scales),
                                       static_cast<int>(second & 0x3f3f3f3fu), static_cast<int>(high_mins));
  const __m128i scales = _mm_cvtepu8_epi16(bytes);
  const __m128i mins = _mm_cvtepu8_epi16(_mm_unpackhi_epi64(bytes, bytes));
  spread_scales(_mm256_broadcastsi128_si256(scales), super);
  super->groups = _mm256_set_m128i(_mm_unpackhi_epi16(mins, mins), _mm_unpacklo_epi16(mins, mins));
}

// Each type: its bytes; what its codes stand above their value, as a power of two (-1 for nothing); whether
// codes are signed; where its scale and the scale of its minimum lie.
struct Q2K {
  static constexpr size_t kBytes = 84;
  static constexpr int kOffsetLog2 = -1;
  static constexpr bool kSigned = false;
  static constexpr int kScaleAt = 80;
  static constexpr int kMinAt = 82;
  GANGLION_INLINE void unpack(const uint8_t* p, Super* super) {
    const __m128i packed = load_128(p);
    const __m128i low = _mm_set1_epi8(15);
    spread_bytes(_mm_and_si128(packed, low), super);
    super->groups = _mm256_cvtepu8_epi16(_mm_and_si128(_mm_srli_epi16(packed, 4), low));
    unpack_two_bits(p + 16, super);
  }
};

struct Q3K {
  static constexpr size_t kBytes = 110;
  static constexpr int kOffsetLog2 = 2;
  static constexpr bool kSigned = false;
  static constexpr int kScaleAt = 108;
  static constexpr int kMinAt = -1;
  GANGLION_INLINE void unpack(const uint8_t* p, Super* super) {
    const uint32_t first = static_cast<uint32_t>(load_i32(p + 96));
    const uint32_t second = static_cast<uint32_t>(load_i32(p + 100));
    const uint32_t top = static_cast<uint32_t>(load_i32(p + 104));
    const auto join = [](uint32_t low, uint32_t high) {
      return static_cast<int>((low & 0x0f0f0f0fu) | (high & 0x03030303u) << 4);
    };
    const __m128i bytes = _mm_setr_epi32(join(first, top), join(second, top >> 2), join(first >> 4, top >> 4),
                                         join(second >> 4, top >> 6));
    const __m128i scales = _mm_sub_epi8(bytes, _mm_set1_epi8(32));
    spread_bytes(scales, super);
    super->groups = _mm256_cvtepi8_epi16(scales);
    unpack_two_bits(p + 32, super);
    const __m256i high = load_256(p);
    add_third_bit<0>(high, super);
    add_third_bit<1>(high, super);
    add_third_bit<2>(high, super);
    add_third_bit<3>(high, super);
    add_third_bit<4>(high, super);
    add_third_bit<5>(high, super);
    add_third_bit<6>(high, super);
    add_third_bit<7>(high, super);
  }

 private:
  template <int kBit>
  GANGLION_INLINE void add_third_bit(__m256i high, Super* super) {
    super->codes[kBit] = _mm256_or_si256(super->codes[kBit], move_bit<kBit, 2>(high));
  }
};

struct Q4K {
  static constexpr size_t kBytes = 144;
  static constexpr int kOffsetLog2 = -1;
  static constexpr bool kSigned = false;
  static constexpr int kScaleAt = 0;
  static constexpr int kMinAt = 2;
  GANGLION_INLINE void unpack(const uint8_t* p, Super* super) {
    unpack_k_scales(p + 4, super);
    const __m256i low = _mm256_set1_epi8(15);
    for (int j = 0; j < 4; ++j) {
      const __m256i bytes = load_256(p + 16 + 32 * j);
      super->codes[2 * j] = _mm256_and_si256(bytes, low);
      super->codes[2 * j + 1] = _mm256_and_si256(_mm256_srli_epi16(bytes, 4), low);
    }
  }
};

struct Q5K {
  static constexpr size_t kBytes = 176;
  static constexpr int kOffsetLog2 = -1;
  static constexpr bool kSigned = false;
  static constexpr int kScaleAt = 0;
  static constexpr int kMinAt = 2;
  GANGLION_INLINE void unpack(const uint8_t* p, Super* super) {
    unpack_k_scales(p + 4, super);
    const __m256i high = load_256(p + 16);
    pair<0>(p + 48, high, super);
    pair<1>(p + 80, high, super);
    pair<2>(p + 112, high, super);
    pair<3>(p + 144, high, super);
  }

 private:
  template <int kPair>
  GANGLION_INLINE void pair(const uint8_t* p, __m256i high, Super* super) {
    const __m256i low = _mm256_set1_epi8(15);
    const __m256i bytes = load_256(p);
    super->codes[2 * kPair] = _mm256_or_si256(_mm256_and_si256(bytes, low), move_bit<2 * kPair, 4>(high));
    super->codes[2 * kPair + 1] =
        _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(bytes, 4), low), move_bit<2 * kPair + 1, 4>(high));
  }
};

struct Q6K {
  static constexpr size_t kBytes = 210;
  static constexpr int kOffsetLog2 = 5;
  static constexpr bool kSigned = false;
  static constexpr int kScaleAt = 208;
  static constexpr int kMinAt = -1;
  GANGLION_INLINE void unpack(const uint8_t* p, Super* super) {
    const __m128i scales = load_128(p + 192);
    spread_bytes(scales, super);
    super->groups = _mm256_cvtepi8_epi16(scales);
    const __m256i nibble = _mm256_set1_epi8(15);
    const __m256i top = _mm256_set1_epi8(0x30);
    for (int h = 0; h < 2; ++h) {
      const __m256i first = load_256(p + 64 * h);
      const __m256i second = load_256(p + 64 * h + 32);
      const __m256i high = load_256(p + 128 + 32 * h);
      __m256i* codes = super->codes + 4 * h;
      codes[0] =
          _mm256_or_si256(_mm256_and_si256(first, nibble), _mm256_and_si256(_mm256_slli_epi16(high, 4), top));
      codes[1] = _mm256_or_si256(_mm256_and_si256(second, nibble),
                                 _mm256_and_si256(_mm256_slli_epi16(high, 2), top));
      codes[2] =
          _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(first, 4), nibble), _mm256_and_si256(high, top));
      codes[3] = _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(second, 4), nibble),
                                 _mm256_and_si256(_mm256_srli_epi16(high, 2), top));
    }
  }
};

struct Iq4Xs {
  static constexpr size_t kBytes = 136;
  static constexpr int kOffsetLog2 = -1;
  static constexpr bool kSigned = true;
  static constexpr int kScaleAt = 0;
  static constexpr int kMinAt = -1;
  GANGLION_INLINE void unpack(const uint8_t* p, Super* super) {
    const __m256i shifts = _mm256_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14);
    const __m256i high = _mm256_srlv_epi32(_mm256_set1_epi32(load_u16(p + 2)), shifts);
    const __m256i low = _mm256_srlv_epi32(_mm256_set1_epi32(load_i32(p + 4)), _mm256_slli_epi32(shifts, 1));
    const __m256i four = _mm256_and_si256(low, _mm256_set1_epi32(15));
    const __m256i two = _mm256_slli_epi32(_mm256_and_si256(high, _mm256_set1_epi32(3)), 4);
    const __m256i scales = _mm256_sub_epi32(_mm256_or_si256(four, two), _mm256_set1_epi32(32));
    const __m128i narrow =
        _mm_packs_epi32(_mm256_castsi256_si128(scales), _mm256_extracti128_si256(scales, 1));
    spread_scales(_mm256_broadcastsi128_si256(narrow), super);
    const __m256i values = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113));
    for (int j = 0; j < 8; ++j) super->codes[j] = _mm256_shuffle_epi8(values, nibbles_16(p + 8 + 16 * j));
  }
};

/// Partial sums of up to eight super-blocks for T tokens, and the scales of these super-blocks.
template <int T>
struct Partials {
  __m256i sums[T][8];
  __m256i mins[T][8];
  alignas(16) uint16_t scales[8];
  alignas(16) uint16_t min_scales[8];
};

/// Stores, for each token, eight int32 whose sum is that of super-block b, number k of its group; likewise of
/// its minima. Codes and sub-scales stay in registers for all tokens.
template <class Type, int T>
GANGLION_INLINE void add_super(const Super& super, const ActivationRow* x, size_t b, size_t k,
                               Partials<T>* partials) {
  __m256i sums[T];
  for (int t = 0; t < T; ++t) sums[t] = _mm256_setzero_si256();
  for (int j = 0; j < 8; ++j) {
    const __m256i codes = Type::kSigned ? _mm256_abs_epi8(super.codes[j]) : super.codes[j];
    for (int t = 0; t < T; ++t) {
      __m256i q = load_256(x[t].q + 256 * b + 32 * static_cast<size_t>(j));
      if (Type::kSigned) q = _mm256_sign_epi8(q, super.codes[j]);
      const __m256i products = _mm256_maddubs_epi16(codes, q);
      sums[t] = _mm256_add_epi32(sums[t], _mm256_madd_epi16(products, super.scales[j]));
    }
  }
  for (int t = 0; t < T; ++t) {
    if (Type::kMinAt >= 0 || Type::kOffsetLog2 >= 0) {
      const __m256i of_groups = _mm256_madd_epi16(super.groups, load_256(x[t].sums + 16 * b));
      if (Type::kMinAt >= 0) partials->mins[t][k] = of_groups;
      constexpr int kShift = Type::kOffsetLog2 >= 0 ? Type::kOffsetLog2 : 0;
      if (Type::kOffsetLog2 >= 0) sums[t] = _mm256_sub_epi32(sums[t], _mm256_slli_epi32(of_groups, kShift));
    }
    partials->sums[t][k] = sums[t];
  }
}

template <class Type, int T>
GANGLION_INLINE void add_group(const Partials<T>& partials, const ActivationRow* x, size_t b, size_t count,
                               __m256* acc) {
  const __m256 present = _mm256_castsi256_ps(lanes_below(count));
  const __m256 scales = _mm256_cvtph_ps(load_128(partials.scales));
  for (int t = 0; t < T; ++t) {
    const __m256 x_scales = _mm256_loadu_ps(x[t].scales + b);
    const __m256 sums = _mm256_cvtepi32_ps(sum_each_8(partials.sums[t]));
    __m256 added = _mm256_fmadd_ps(_mm256_mul_ps(scales, x_scales), sums, acc[t]);
    if (Type::kMinAt >= 0) {
      const __m256 min_scales = _mm256_cvtph_ps(load_128(partials.min_scales));
      const __m256 mins = _mm256_cvtepi32_ps(sum_each_8(partials.mins[t]));
      added = _mm256_fnmadd_ps(_mm256_mul_ps(min_scales, x_scales), mins, added);
    }
    // Lanes without a super-block keep their value, whatever lies behind the last scale.
    acc[t] = _mm256_blendv_ps(acc[t], added, present);
  }
}

template <class Type>
struct Kernel {
  template <int T>
  GANGLION_INLINE void row(const MatmulArgs& args, size_t r, const uint8_t* x0, float* out) {
    const uint8_t* const weights = args.row(r);
    const size_t supers = args.n / 256;
    const size_t sums_at = args.n + (supers * 4 + 63) / 64 * 64;
    ActivationRow x[T];
    __m256 acc[T];
    for (int t = 0; t < T; ++t) {
      const uint8_t* p = x0 + static_cast<size_t>(t) * args.x_stride;
      x[t] = {reinterpret_cast<const int8_t*>(p), reinterpret_cast<const float*>(p + args.n),
              reinterpret_cast<const int16_t*>(p + sums_at)};
      acc[t] = _mm256_setzero_ps();
    }
    const uint8_t* const ahead = ahead_of(args, r, T);
    Partials<T> partials;
    for (size_t b = 0; b < supers; b += 8) {
      const size_t count = supers - b < 8 ? supers - b : 8;
      if (count < 8) memset(&partials, 0, sizeof partials);
      for (size_t k = 0; k < count; ++k) {
        const uint8_t* p = weights + (b + k) * Type::kBytes;
        Super super;
        if (ahead != nullptr) prefetch<Type::kBytes>(ahead + (b + k) * Type::kBytes);
        Type::unpack(p, &super);
        add_super<Type, T>(super, x, b + k, k, &partials);
        partials.scales[k] = load_u16(p + Type::kScaleAt);
        if (Type::kMinAt >= 0) partials.min_scales[k] = load_u16(p + Type::kMinAt);
      }
      add_group<Type, T>(partials, x, b, count, acc);
    }
    for (int t = 0; t < T; ++t) out[static_cast<size_t>(t) * args.out_stride] = tree_8(acc[t]);
  }
};

template <class Type>
void matmul(const MatmulArgs& args) {
  for_each_tile<Kernel<Type>>(args);
}

struct Table {
  MatmulFn of[kTypeSlots];
};

constexpr Table make_table() {
  Table table{};
  table.of[static_cast<size_t>(TensorType::kQ2_K)] = matmul<Q2K>;
  table.of[static_cast<size_t>(TensorType::kQ3_K)] = matmul<Q3K>;
  table.of[static_cast<size_t>(TensorType::kQ4_K)] = matmul<Q4K>;
  table.of[static_cast<size_t>(TensorType::kQ5_K)] = matmul<Q5K>;
  table.of[static_cast<size_t>(TensorType::kQ6_K)] = matmul<Q6K>;
  table.of[static_cast<size_t>(TensorType::kIQ4_XS)] = matmul<Iq4Xs>;
  return table;
}

constexpr Table kTable = make_table();

}  // namespace

const MatmulFn* avx2_matmul_super() {
  return kTable.of;
}

}  // namespace ganglion::kernels

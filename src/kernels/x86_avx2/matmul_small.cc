// AVX2 products of the types with blocks of 32: eight blocks at a time, one per lane of the accumulator.
// x86_avxvnni/ compiles this file again, for vpdpbusd.
// Source of the layouts: GGUF/ggml type definitions. Same bits as reference/matmul.cc.
#include "kernels/x86_avx2/avx2.h"
#include "kernels/x86_avx2/common.h"

namespace ganglion::kernels {
namespace {

/// Eight blocks of one row, unpacked. Nibble types are paired, which halves the work on codes and sums:
/// codes[2 i] holds the low nibbles (elements 0 to 15) of blocks 2 i and 2 i + 1, codes[2 i + 1] the high
/// ones. Q8_0 has its blocks one by one.
struct Group {
  __m256i codes[8];
  __m256 scales;
  __m256 mins;
};

GANGLION_INLINE __m256i two_halves(const void* low, const void* high) {
  return _mm256_inserti128_si256(_mm256_castsi128_si256(load_128(low)), load_128(high), 1);
}

/// The half-precision scales at the start of eight blocks, and the minima that follow them where there are
/// any. Reads four bytes of each block: loads of 32 bits need no merging.
template <size_t kBytes, bool kHasMin>
GANGLION_INLINE void load_scales(const uint8_t* p, Group* group) {
  __m128i pairs[4];
  for (size_t i = 0; i < 4; ++i) {
    pairs[i] = _mm_unpacklo_epi16(_mm_cvtsi32_si128(load_i32(p + 2 * i * kBytes)),
                                  _mm_cvtsi32_si128(load_i32(p + (2 * i + 1) * kBytes)));
  }
  const __m128i low = _mm_unpacklo_epi32(pairs[0], pairs[1]);
  const __m128i high = _mm_unpacklo_epi32(pairs[2], pairs[3]);
  group->scales = _mm256_cvtph_ps(_mm_unpacklo_epi64(low, high));
  if (kHasMin) group->mins = _mm256_cvtph_ps(_mm_unpackhi_epi64(low, high));
}

/// The nibbles `kAt` bytes into blocks.
template <size_t kBytes, size_t kAt>
GANGLION_INLINE void load_nibbles(const uint8_t* p, Group* group) {
  const __m256i low = _mm256_set1_epi8(15);
  for (size_t i = 0; i < 4; ++i) {
    const uint8_t* first = p + 2 * i * kBytes + kAt;
    const __m256i bytes = two_halves(first, first + kBytes);
    group->codes[2 * i] = _mm256_and_si256(bytes, low);
    group->codes[2 * i + 1] = _mm256_and_si256(_mm256_srli_epi16(bytes, 4), low);
  }
}

/// Adds 16 to codes whose bit is set in the 32 bits `kAt` bytes into their block.
template <size_t kBytes, size_t kAt>
GANGLION_INLINE void add_fifth_bits(const uint8_t* p, Group* group) {
  const __m256i bit = _mm256_set1_epi64x(static_cast<long long>(0x8040201008040201ull));
  const __m256i sixteen = _mm256_set1_epi8(16);
  const __m256i low_bytes = _mm256_broadcastsi128_si256(_mm_set_epi64x(0x0101010101010101, 0));
  const __m256i high_bytes =
      _mm256_broadcastsi128_si256(_mm_set_epi64x(0x0303030303030303, 0x0202020202020202));
  for (size_t i = 0; i < 4; ++i) {
    const uint8_t* first = p + 2 * i * kBytes + kAt;
    const __m256i bits = _mm256_blend_epi32(_mm256_set1_epi32(load_i32(first)),
                                            _mm256_set1_epi32(load_i32(first + kBytes)), 0xf0);
    const __m256i low = _mm256_and_si256(_mm256_shuffle_epi8(bits, low_bytes), bit);
    const __m256i high = _mm256_and_si256(_mm256_shuffle_epi8(bits, high_bytes), bit);
    __m256i* codes = group->codes + 2 * i;
    codes[0] = _mm256_or_si256(codes[0], _mm256_and_si256(_mm256_cmpeq_epi8(low, bit), sixteen));
    codes[1] = _mm256_or_si256(codes[1], _mm256_and_si256(_mm256_cmpeq_epi8(high, bit), sixteen));
  }
}

GANGLION_INLINE void look_up(__m128i values, Group* group) {
  const __m256i table = _mm256_broadcastsi128_si256(values);
  for (size_t i = 0; i < 8; ++i) group->codes[i] = _mm256_shuffle_epi8(table, group->codes[i]);
}

/// What all types say of themselves: `kBytes` of a block; `kOffset`, what codes stand above their value
/// (codes are then unsigned); `kSigned` where codes are values; `kHasMin`; `kPaired` as in Group.
template <size_t kBytesIn, int kOffsetIn, bool kSignedIn, bool kHasMinIn, bool kPairedIn = true>
struct Traits {
  static constexpr size_t kBytes = kBytesIn;
  static constexpr int kOffset = kOffsetIn;
  static constexpr bool kSigned = kSignedIn;
  static constexpr bool kHasMin = kHasMinIn;
  static constexpr bool kPaired = kPairedIn;
};

struct Q4_0 : Traits<18, 8, false, false> {
  GANGLION_INLINE void unpack(const uint8_t* p, Group* group) {
    load_nibbles<kBytes, 2>(p, group);
    load_scales<kBytes, kHasMin>(p, group);
  }
};

struct Q4_1 : Traits<20, 0, false, true> {
  GANGLION_INLINE void unpack(const uint8_t* p, Group* group) {
    load_nibbles<kBytes, 4>(p, group);
    load_scales<kBytes, kHasMin>(p, group);
  }
};

struct Q5_0 : Traits<22, 16, false, false> {
  GANGLION_INLINE void unpack(const uint8_t* p, Group* group) {
    load_nibbles<kBytes, 6>(p, group);
    add_fifth_bits<kBytes, 2>(p, group);
    load_scales<kBytes, kHasMin>(p, group);
  }
};

struct Q5_1 : Traits<24, 0, false, true> {
  GANGLION_INLINE void unpack(const uint8_t* p, Group* group) {
    load_nibbles<kBytes, 8>(p, group);
    add_fifth_bits<kBytes, 4>(p, group);
    load_scales<kBytes, kHasMin>(p, group);
  }
};

struct Q8_0 : Traits<34, 0, true, false, false> {
  GANGLION_INLINE void unpack(const uint8_t* p, Group* group) {
    for (size_t k = 0; k < 8; ++k) group->codes[k] = load_256(p + k * kBytes + 2);
    load_scales<kBytes, kHasMin>(p, group);
  }
};

struct Iq4Nl : Traits<18, 0, true, false> {
  GANGLION_INLINE void unpack(const uint8_t* p, Group* group) {
    load_nibbles<kBytes, 2>(p, group);
    look_up(_mm_setr_epi8(-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113), group);
    load_scales<kBytes, kHasMin>(p, group);
  }
};

struct Mxfp4 : Traits<17, 12, false, false> {
  GANGLION_INLINE void unpack(const uint8_t* p, Group* group) {
    load_nibbles<kBytes, 1>(p, group);
    // The doubled E2M1 values, 12 higher.
    look_up(_mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0), group);
    // Half the power of two of an E8M0 exponent; the two lowest are subnormal.
    alignas(8) uint8_t exponents[8];
    for (size_t k = 0; k < 8; ++k) exponents[k] = p[k * kBytes];
    const __m256i e = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(exponents)));
    const __m256i normal = _mm256_slli_epi32(_mm256_sub_epi32(e, _mm256_set1_epi32(1)), 23);
    const __m256i subnormal = _mm256_sllv_epi32(_mm256_set1_epi32(0x00200000), e);
    const __m256i low = _mm256_cmpgt_epi32(_mm256_set1_epi32(2), e);
    group->scales = _mm256_castsi256_ps(_mm256_blendv_epi8(normal, subnormal, low));
  }
};

#ifndef __AVXVNNI__
/// Products of 32 codes and activations, added up in pairs. The largest is 2 * 128 * 127 < 2^15, as
/// activations are at least -127; of two unsigned codes of 5 bits, a quarter of that.
template <bool kSigned>
GANGLION_INLINE __m256i multiply(__m256i codes, __m256i q) {
  if (kSigned) {
    q = _mm256_sign_epi8(q, codes);
    codes = _mm256_abs_epi8(codes);
  }
  return _mm256_maddubs_epi16(codes, q);
}
#endif

/// Sums of four products each: of 32 codes with q, and of the next 32 where codes are paired.
template <bool kSigned, bool kPaired>
GANGLION_INLINE __m256i fours(const __m256i* codes, __m256i q, __m256i q_high) {
#ifdef __AVXVNNI__
  const __m256i low = add_fours<kSigned>(_mm256_setzero_si256(), codes[0], q);
  return kPaired ? add_fours<kSigned>(low, codes[1], q_high) : low;
#else
  const __m256i one = _mm256_set1_epi16(1);
  const __m256i low = multiply<kSigned>(codes[0], q);
  if (!kPaired) return _mm256_madd_epi16(low, one);
  const __m256i high = multiply<kSigned>(codes[1], q_high);
  if (!kSigned) return _mm256_madd_epi16(_mm256_add_epi16(low, high), one);
  return _mm256_add_epi32(_mm256_madd_epi16(low, one), _mm256_madd_epi16(high, one));
#endif
}

/// The int32 sums of the products of eight blocks, in order, for T rows of activations that begin at q[t].
/// Codes stay in registers for all rows.
template <class Type, int T>
GANGLION_INLINE void block_sums(const Group& group, const int8_t* const* q, __m256i* sums) {
  constexpr size_t kParts = Type::kPaired ? 4 : 8;
  __m256i partial[T][kParts];
  for (size_t i = 0; i < kParts; ++i) {
    for (int t = 0; t < T; ++t) {
      const int8_t* x = q[t] + 256 / kParts * i;
      if (Type::kPaired) {
        partial[t][i] = fours<Type::kSigned, true>(group.codes + 2 * i, two_halves(x, x + 32),
                                                   two_halves(x + 16, x + 48));
      } else {
        partial[t][i] = fours<Type::kSigned, false>(group.codes + i, load_256(x), __m256i());
      }
    }
  }
  for (int t = 0; t < T; ++t) sums[t] = Type::kPaired ? sum_each_4(partial[t]) : sum_each_8(partial[t]);
}

/// Adds the products of a group to the lanes of its blocks.
template <class Type>
GANGLION_INLINE __m256 add_group(const Group& group, __m256i products, const float* scales,
                                 const int16_t* sums, __m256 acc) {
  const __m256i x_sums = _mm256_cvtepi16_epi32(load_128(sums));
  if (Type::kOffset == 8) products = _mm256_sub_epi32(products, _mm256_slli_epi32(x_sums, 3));
  if (Type::kOffset == 16) products = _mm256_sub_epi32(products, _mm256_slli_epi32(x_sums, 4));
  if (Type::kOffset == 12) {
    const __m256i above = _mm256_add_epi32(_mm256_slli_epi32(x_sums, 3), _mm256_slli_epi32(x_sums, 2));
    products = _mm256_sub_epi32(products, above);
  }
  const __m256 x_scales = _mm256_loadu_ps(scales);
  acc = _mm256_fmadd_ps(_mm256_mul_ps(group.scales, x_scales), _mm256_cvtepi32_ps(products), acc);
  if (Type::kHasMin) {
    acc = _mm256_fmadd_ps(_mm256_mul_ps(group.mins, x_scales), _mm256_cvtepi32_ps(x_sums), acc);
  }
  return acc;
}

template <class Type>
struct Kernel {
  template <int T>
  GANGLION_INLINE void row(const MatmulArgs& args, size_t r, const uint8_t* x0, float* out) {
    const uint8_t* const weights = args.row(r);
    const size_t blocks = args.n / 32;
    const size_t scales_at = (args.n + 63) / 64 * 64;
    const size_t sums_at = scales_at + (blocks * 4 + 63) / 64 * 64;
    ActivationRow x[T];
    __m256 acc[T];
    for (int t = 0; t < T; ++t) {
      const uint8_t* p = x0 + static_cast<size_t>(t) * args.x_stride;
      x[t] = {reinterpret_cast<const int8_t*>(p), reinterpret_cast<const float*>(p + scales_at),
              reinterpret_cast<const int16_t*>(p + sums_at)};
      acc[t] = _mm256_setzero_ps();
    }
    const uint8_t* const ahead = ahead_of(args, r, T);
    size_t b = 0;
    for (; b + 8 <= blocks; b += 8) {
      const uint8_t* p = weights + b * Type::kBytes;
      Group group;
      if (ahead != nullptr) prefetch<8 * Type::kBytes>(ahead + b * Type::kBytes);
      Type::unpack(p, &group);
      const int8_t* q[T];
      __m256i products[T];
      for (int t = 0; t < T; ++t) q[t] = x[t].q + 32 * b;
      block_sums<Type, T>(group, q, products);
      for (int t = 0; t < T; ++t) {
        acc[t] = add_group<Type>(group, products[t], x[t].scales + b, x[t].sums + b, acc[t]);
      }
    }
    if (b < blocks) add_last<T>(weights, x, b, blocks - b, acc);
    for (int t = 0; t < T; ++t) out[static_cast<size_t>(t) * args.out_stride] = tree_8(acc[t]);
  }

 private:
  /// The last blocks % 8 blocks, from copies padded with zeros.
  template <int T>
  static void add_last(const uint8_t* weights, const ActivationRow* x, size_t b, size_t count, __m256* acc) {
    uint8_t padded[8 * Type::kBytes] = {};
    memcpy(padded, weights + b * Type::kBytes, count * Type::kBytes);
    Group group;
    Type::unpack(padded, &group);
    const __m256 present = _mm256_castsi256_ps(lanes_below(count));
    for (int t = 0; t < T; ++t) {
      int8_t padded_q[256] = {};
      memcpy(padded_q, x[t].q + 32 * b, 32 * count);
      const int8_t* q = padded_q;
      __m256i products;
      block_sums<Type, 1>(group, &q, &products);
      // Rows end on a multiple of 64 bytes, so eight scales and sums are there to read.
      const __m256 added = add_group<Type>(group, products, x[t].scales + b, x[t].sums + b, acc[t]);
      // Lanes without a block keep their value, whatever lies behind the last scale.
      acc[t] = _mm256_blendv_ps(acc[t], added, present);
    }
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
  table.of[static_cast<size_t>(TensorType::kQ4_0)] = matmul<Q4_0>;
  table.of[static_cast<size_t>(TensorType::kQ4_1)] = matmul<Q4_1>;
  table.of[static_cast<size_t>(TensorType::kQ5_0)] = matmul<Q5_0>;
  table.of[static_cast<size_t>(TensorType::kQ5_1)] = matmul<Q5_1>;
  table.of[static_cast<size_t>(TensorType::kQ8_0)] = matmul<Q8_0>;
  table.of[static_cast<size_t>(TensorType::kIQ4_NL)] = matmul<Iq4Nl>;
  table.of[static_cast<size_t>(TensorType::kMXFP4)] = matmul<Mxfp4>;
  return table;
}

constexpr Table kTable = make_table();

}  // namespace

const MatmulFn* GANGLION_PART(matmul_small)() {
  return kTable.of;
}

}  // namespace ganglion::kernels

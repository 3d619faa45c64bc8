// AVX-512 VNNI products of up to six tokens with the types of 32-element blocks: eight blocks at a time,
// one per lane of the accumulator. More tokens go to gemm_small.cc. Same bits as reference/matmul.cc.
#include "kernels/x86_avx512vnni/avx512vnni.h"
#include "kernels/x86_avx512vnni/common.h"

namespace ganglion::kernels {
namespace {

/// Eight blocks of one row: unsigned codes of blocks 2 i and 2 i + 1, in order, in codes[i].
struct Group {
  __m512i codes[4];
  __m256 scales;
  __m256 mins;
};

/// Scales and minima. Those of 20-byte blocks are 32-bit words 0, 5, .. 35.
template <size_t kBytes>
GANGLION_INLINE void half_scales_and_mins(const uint8_t* p, Group* group) {
  const __m512i pick = _mm512_castsi256_si512(_mm256_setr_epi32(0, 5, 10, 15, 16, 21, 26, 31));
  const __m256i words =
      kBytes == 20 ? _mm512_castsi512_si256(_mm512_permutex2var_epi32(load_512(p), pick, load_512(p + 80)))
                   : heads<kBytes>(p);
  group->scales = _mm256_cvtph_ps(_mm256_cvtepi32_epi16(words));
  group->mins = _mm256_cvtph_ps(_mm256_cvtepi32_epi16(_mm256_srli_epi32(words, 16)));
}

/// The nibbles `kAt` bytes into blocks: low ones in even 128-bit lanes, high ones in odd ones.
template <size_t kBytes, size_t kAt>
GANGLION_INLINE void load_nibbles(const uint8_t* p, Group* group) {
  const __m512i shifts = _mm512_set_epi64(0x0004000400040004, 0x0004000400040004, 0, 0, 0x0004000400040004,
                                          0x0004000400040004, 0, 0);
  for (size_t i = 0; i < 4; ++i) {
    const uint8_t* first = p + 2 * i * kBytes + kAt;
    const __m512i bytes = _mm512_mask_broadcast_i32x4(_mm512_broadcast_i32x4(load_128(first)), 0xff00,
                                                      load_128(first + kBytes));
    group->codes[i] = low_nibbles(_mm512_srlv_epi16(bytes, shifts));
  }
}

/// Adds 16 to codes whose bit is set in the 32 bits `kAt` bytes into their block.
template <size_t kBytes, size_t kAt>
GANGLION_INLINE void add_fifth_bits(const uint8_t* p, Group* group) {
  for (size_t i = 0; i < 4; ++i) {
    const uint8_t* first = p + 2 * i * kBytes + kAt;
    const uint64_t low = static_cast<uint32_t>(load_i32(first));
    const uint64_t high = static_cast<uint32_t>(load_i32(first + kBytes));
    group->codes[i] =
        _mm512_mask_add_epi8(group->codes[i], high << 32 | low, group->codes[i], _mm512_set1_epi8(16));
  }
}

GANGLION_INLINE void look_up(__m512i values, Group* group) {
  for (size_t i = 0; i < 4; ++i) group->codes[i] = _mm512_shuffle_epi8(values, group->codes[i]);
}

/// What codes stand above their value, and whether there is a minimum.
template <TensorType kTypeIn, size_t kBytesIn, int kOffsetIn, bool kHasMinIn>
struct Traits {
  static constexpr TensorType kType = kTypeIn;
  static constexpr size_t kBytes = kBytesIn;
  static constexpr int kOffset = kOffsetIn;
  static constexpr bool kHasMin = kHasMinIn;
};

struct Q4_0 : Traits<TensorType::kQ4_0, 18, 8, false> {
  GANGLION_INLINE void unpack(const uint8_t* p, Group* group) {
    load_nibbles<kBytes, 2>(p, group);
    group->scales = half_scales<kBytes>(p);
  }
};

struct Q4_1 : Traits<TensorType::kQ4_1, 20, 0, true> {
  GANGLION_INLINE void unpack(const uint8_t* p, Group* group) {
    load_nibbles<kBytes, 4>(p, group);
    half_scales_and_mins<kBytes>(p, group);
  }
};

struct Q5_0 : Traits<TensorType::kQ5_0, 22, 16, false> {
  GANGLION_INLINE void unpack(const uint8_t* p, Group* group) {
    load_nibbles<kBytes, 6>(p, group);
    add_fifth_bits<kBytes, 2>(p, group);
    group->scales = half_scales<kBytes>(p);
  }
};

struct Q5_1 : Traits<TensorType::kQ5_1, 24, 0, true> {
  GANGLION_INLINE void unpack(const uint8_t* p, Group* group) {
    load_nibbles<kBytes, 8>(p, group);
    add_fifth_bits<kBytes, 4>(p, group);
    half_scales_and_mins<kBytes>(p, group);
  }
};

struct Q8_0 : Traits<TensorType::kQ8_0, 34, 128, false> {
  GANGLION_INLINE void unpack(const uint8_t* p, Group* group) {
    for (size_t i = 0; i < 4; ++i) {
      const uint8_t* first = p + 2 * i * kBytes + 2;
      const __m512i both =
          _mm512_inserti64x4(_mm512_castsi256_si512(load_256(first)), load_256(first + kBytes), 1);
      group->codes[i] = _mm512_xor_si512(both, _mm512_set1_epi8(-128));
    }
    group->scales = half_scales<kBytes>(p);
  }
};

struct Iq4Nl : Traits<TensorType::kIQ4_NL, 18, 128, false> {
  GANGLION_INLINE void unpack(const uint8_t* p, Group* group) {
    load_nibbles<kBytes, 2>(p, group);
    look_up(iq4_codebook(), group);
    group->scales = half_scales<kBytes>(p);
  }
};

struct Mxfp4 : Traits<TensorType::kMXFP4, 17, 12, false> {
  GANGLION_INLINE void unpack(const uint8_t* p, Group* group) {
    load_nibbles<kBytes, 1>(p, group);
    look_up(fp4_codebook(), group);
    const __m512i words = _mm512_castsi256_si512(heads<kBytes>(p));
    group->scales = _mm512_castps512_ps256(e8m0_halves(words));
  }
};

/// Per 128-bit lane of the result, sums of the four int32 in that lane of p[0], p[1], p[2] and p[3].
GANGLION_INLINE __m512i sum_quarters(const __m512i* p) {
  const __m512i a = _mm512_add_epi32(_mm512_unpacklo_epi64(p[0], p[1]), _mm512_unpackhi_epi64(p[0], p[1]));
  const __m512i b = _mm512_add_epi32(_mm512_unpacklo_epi64(p[2], p[3]), _mm512_unpackhi_epi64(p[2], p[3]));
  const __m512 x = _mm512_castsi512_ps(a), y = _mm512_castsi512_ps(b);
  return _mm512_add_epi32(_mm512_castps_si512(_mm512_shuffle_ps(x, y, _MM_SHUFFLE(2, 0, 2, 0))),
                          _mm512_castps_si512(_mm512_shuffle_ps(x, y, _MM_SHUFFLE(3, 1, 3, 1))));
}

/// The same where sums of two int32 fit into 16 bits: codes of up to 5 bits give 8 * 31 * 127 = 31496 at
/// most.
GANGLION_INLINE __m512i sum_small_quarters(const __m512i* p) {
  const __m512i one = _mm512_set1_epi16(1);
  const __m512i a = _mm512_madd_epi16(_mm512_packs_epi32(p[0], p[1]), one);
  const __m512i b = _mm512_madd_epi16(_mm512_packs_epi32(p[2], p[3]), one);
  return _mm512_madd_epi16(_mm512_packs_epi32(a, b), one);
}

template <class Type>
GANGLION_INLINE __m512i quarters_of(const Group& group, const int8_t* q) {
  __m512i parts[4];
  for (size_t i = 0; i < 4; ++i) {
    parts[i] = _mm512_dpbusd_epi32(_mm512_setzero_si512(), group.codes[i], load_512(q + 64 * i));
  }
  return Type::kOffset < 128 ? sum_small_quarters(parts) : sum_quarters(parts);
}

/// `products` of codes, less what codes stand above their value.
template <class Type>
GANGLION_INLINE __m512i without_offset(__m512i products, __m512i x_sums) {
  if (Type::kOffset == 8) return _mm512_sub_epi32(products, _mm512_slli_epi32(x_sums, 3));
  if (Type::kOffset == 16) return _mm512_sub_epi32(products, _mm512_slli_epi32(x_sums, 4));
  if (Type::kOffset == 128) return _mm512_sub_epi32(products, _mm512_slli_epi32(x_sums, 7));
  if (Type::kOffset == 12) {
    const __m512i above = _mm512_add_epi32(_mm512_slli_epi32(x_sums, 3), _mm512_slli_epi32(x_sums, 2));
    return _mm512_sub_epi32(products, above);
  }
  return products;
}

/// Adds the products of a group with 256 activations, from element 32 b on, to the lanes of its blocks.
template <class Type>
GANGLION_INLINE __m256 add_group(const Group& group, const ActivationRow& x, size_t b, __m256 acc) {
  const __m512i quarters = quarters_of<Type>(group, x.q + 32 * b);
  const __m512i even = _mm512_setr_epi32(0, 8, 1, 9, 2, 10, 3, 11, 0, 0, 0, 0, 0, 0, 0, 0);
  const __m512i odd = _mm512_setr_epi32(4, 12, 5, 13, 6, 14, 7, 15, 0, 0, 0, 0, 0, 0, 0, 0);
  const __m256i sums = _mm256_add_epi32(_mm512_castsi512_si256(_mm512_permutexvar_epi32(even, quarters)),
                                        _mm512_castsi512_si256(_mm512_permutexvar_epi32(odd, quarters)));
  const __m256i x_sums = _mm256_cvtepi16_epi32(load_128(x.sums + b));
  const __m256i products = _mm512_castsi512_si256(
      without_offset<Type>(_mm512_castsi256_si512(sums), _mm512_castsi256_si512(x_sums)));
  const __m256 x_scales = _mm256_loadu_ps(x.scales + b);
  acc = _mm256_fmadd_ps(_mm256_mul_ps(group.scales, x_scales), _mm256_cvtepi32_ps(products), acc);
  if (Type::kHasMin) {
    acc = _mm256_fmadd_ps(_mm256_mul_ps(group.mins, x_scales), _mm256_cvtepi32_ps(x_sums), acc);
  }
  return acc;
}

GANGLION_INLINE __m512 both_halves(__m256 low, __m256 high) {
  return _mm512_insertf32x8(_mm512_castps256_ps512(low), high, 1);
}

/// The same for two tokens, one in each half of `acc`.
template <class Type>
GANGLION_INLINE __m512 add_group_of_two(const Group& group, const ActivationRow* x, size_t b, __m512 acc) {
  const __m512i first = quarters_of<Type>(group, x[0].q + 32 * b);
  const __m512i second = quarters_of<Type>(group, x[1].q + 32 * b);
  const __m512i even = _mm512_setr_epi32(0, 8, 1, 9, 2, 10, 3, 11, 16, 24, 17, 25, 18, 26, 19, 27);
  const __m512i odd = _mm512_setr_epi32(4, 12, 5, 13, 6, 14, 7, 15, 20, 28, 21, 29, 22, 30, 23, 31);
  const __m512i sums = _mm512_add_epi32(_mm512_permutex2var_epi32(first, even, second),
                                        _mm512_permutex2var_epi32(first, odd, second));
  const __m512i x_sums = _mm512_cvtepi16_epi32(
      _mm256_inserti128_si256(_mm256_castsi128_si256(load_128(x[0].sums + b)), load_128(x[1].sums + b), 1));
  const __m512 x_scales = both_halves(_mm256_loadu_ps(x[0].scales + b), _mm256_loadu_ps(x[1].scales + b));
  const __m512 scales = both_halves(group.scales, group.scales);
  acc = _mm512_fmadd_ps(_mm512_mul_ps(scales, x_scales),
                        _mm512_cvtepi32_ps(without_offset<Type>(sums, x_sums)), acc);
  if (Type::kHasMin) {
    const __m512 mins = both_halves(group.mins, group.mins);
    acc = _mm512_fmadd_ps(_mm512_mul_ps(mins, x_scales), _mm512_cvtepi32_ps(x_sums), acc);
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
    constexpr int kPairs = T / 2;
    ActivationRow x[T];
    __m512 two[kPairs + 1];  // No array is empty.
    __m256 acc[T];
    for (int t = 0; t < T; ++t) {
      const uint8_t* p = x0 + static_cast<size_t>(t) * args.x_stride;
      x[t] = {reinterpret_cast<const int8_t*>(p), reinterpret_cast<const float*>(p + scales_at),
              reinterpret_cast<const int16_t*>(p + sums_at)};
      acc[t] = _mm256_setzero_ps();
      two[t / 2] = _mm512_setzero_ps();
    }
    const uint8_t* const ahead = ahead_of(args, r, 1);
    size_t b = 0;
    for (; b + 8 <= blocks; b += 8) {
      const uint8_t* p = weights + b * Type::kBytes;
      if (ahead != nullptr) prefetch<8 * Type::kBytes>(ahead + b * Type::kBytes);
      Group group;
      Type::unpack(p, &group);
      for (int pair = 0; pair < kPairs; ++pair)
        two[pair] = add_group_of_two<Type>(group, x + 2 * pair, b, two[pair]);
      if (T % 2 == 1) acc[T - 1] = add_group<Type>(group, x[T - 1], b, acc[T - 1]);
    }
    for (int pair = 0; pair < kPairs; ++pair) {
      acc[2 * pair] = _mm512_castps512_ps256(two[pair]);
      acc[2 * pair + 1] = _mm512_extractf32x8_ps(two[pair], 1);
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
    const __mmask8 present = static_cast<__mmask8>((1u << count) - 1);
    for (int t = 0; t < T; ++t) {
      int8_t q[256] = {};
      memcpy(q, x[t].q + 32 * b, 32 * count);
      // Rows end on a multiple of 64 bytes, so eight scales and sums are there to read.
      const ActivationRow last = {q, x[t].scales + b, x[t].sums + b};
      const __m256 added = add_group<Type>(group, last, 0, acc[t]);
      // Lanes without a block keep their value, whatever lies behind the last scale.
      acc[t] = _mm256_mask_mov_ps(acc[t], present, added);
    }
  }
};

template <class Type>
void matmul(const MatmulArgs& args) {
  if (args.tokens >= kFewestTokens && args.rows > 1)
    return avx512vnni_gemm_small()[static_cast<size_t>(Type::kType)](args);
  if (Type::kType == TensorType::kQ4_0 && avx512vnni_try_matmul_nibbles(args)) return;
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

const MatmulFn* avx512vnni_matmul_small() {
  return kTable.of;
}

}  // namespace ganglion::kernels

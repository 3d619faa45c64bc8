// AVX2 products of the types with blocks of 32: eight blocks at a time, one per lane of the accumulator.
// Source of the layouts: GGUF/ggml type definitions. Same bits as reference/matmul.cc.
#include "kernels/x86_avx2/avx2.h"
#include "kernels/x86_avx2/common.h"

namespace ganglion::kernels {
namespace {

/// Half-precision numbers of `count` <= 8 blocks, zero behind.
template <size_t kBytes>
GANGLION_INLINE __m256 gather_halves(const uint8_t* p, size_t count) {
  if (count == 8) {
    return _mm256_cvtph_ps(_mm_set_epi16(
        static_cast<short>(load_u16(p + 7 * kBytes)), static_cast<short>(load_u16(p + 6 * kBytes)),
        static_cast<short>(load_u16(p + 5 * kBytes)), static_cast<short>(load_u16(p + 4 * kBytes)),
        static_cast<short>(load_u16(p + 3 * kBytes)), static_cast<short>(load_u16(p + 2 * kBytes)),
        static_cast<short>(load_u16(p + kBytes)), static_cast<short>(load_u16(p))));
  }
  uint16_t halves[8] = {};
  for (size_t k = 0; k < count; ++k) halves[k] = load_u16(p + k * kBytes);
  return _mm256_cvtph_ps(load_128(halves));
}

/// 16 in byte i where bit i is set.
GANGLION_INLINE __m256i fifth_bits(const uint8_t* p) {
  const __m256i spread = _mm256_shuffle_epi8(_mm256_set1_epi32(load_i32(p)),
                                             _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202,
                                                                0x0303030303030303));
  const __m256i bit = _mm256_set1_epi64x(static_cast<long long>(0x8040201008040201ull));
  return _mm256_and_si256(_mm256_cmpeq_epi8(_mm256_and_si256(spread, bit), bit), _mm256_set1_epi8(16));
}

GANGLION_INLINE __m256i lookup(__m256i codes, __m128i values) {
  return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(values), codes);
}

// Each type: its bytes; `kOffset`, what its codes stand above their value (then codes are unsigned);
// `kSigned` where codes are values; where its minimum lies, or -1.
struct Q4_0 {
  static constexpr size_t kBytes = 18;
  static constexpr int kOffset = 8;
  static constexpr bool kSigned = false;
  static constexpr int kMinAt = -1;
  GANGLION_INLINE __m256i codes(const uint8_t* p) { return nibbles_16(p + 2); }
  GANGLION_INLINE __m256 scales(const uint8_t* p, size_t count) { return gather_halves<kBytes>(p, count); }
};

struct Q4_1 {
  static constexpr size_t kBytes = 20;
  static constexpr int kOffset = 0;
  static constexpr bool kSigned = false;
  static constexpr int kMinAt = 2;
  GANGLION_INLINE __m256i codes(const uint8_t* p) { return nibbles_16(p + 4); }
  GANGLION_INLINE __m256 scales(const uint8_t* p, size_t count) { return gather_halves<kBytes>(p, count); }
};

struct Q5_0 {
  static constexpr size_t kBytes = 22;
  static constexpr int kOffset = 16;
  static constexpr bool kSigned = false;
  static constexpr int kMinAt = -1;
  GANGLION_INLINE __m256i codes(const uint8_t* p) { return _mm256_or_si256(nibbles_16(p + 6), fifth_bits(p + 2)); }
  GANGLION_INLINE __m256 scales(const uint8_t* p, size_t count) { return gather_halves<kBytes>(p, count); }
};

struct Q5_1 {
  static constexpr size_t kBytes = 24;
  static constexpr int kOffset = 0;
  static constexpr bool kSigned = false;
  static constexpr int kMinAt = 2;
  GANGLION_INLINE __m256i codes(const uint8_t* p) { return _mm256_or_si256(nibbles_16(p + 8), fifth_bits(p + 4)); }
  GANGLION_INLINE __m256 scales(const uint8_t* p, size_t count) { return gather_halves<kBytes>(p, count); }
};

struct Q8_0 {
  static constexpr size_t kBytes = 34;
  static constexpr int kOffset = 0;
  static constexpr bool kSigned = true;
  static constexpr int kMinAt = -1;
  GANGLION_INLINE __m256i codes(const uint8_t* p) { return load_256(p + 2); }
  GANGLION_INLINE __m256 scales(const uint8_t* p, size_t count) { return gather_halves<kBytes>(p, count); }
};

struct Iq4Nl {
  static constexpr size_t kBytes = 18;
  static constexpr int kOffset = 0;
  static constexpr bool kSigned = true;
  static constexpr int kMinAt = -1;
  GANGLION_INLINE __m256i codes(const uint8_t* p) {
    return lookup(nibbles_16(p + 2),
                  _mm_setr_epi8(-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113));
  }
  GANGLION_INLINE __m256 scales(const uint8_t* p, size_t count) { return gather_halves<kBytes>(p, count); }
};

struct Mxfp4 {
  static constexpr size_t kBytes = 17;
  static constexpr int kOffset = 12;  // The doubled E2M1 values, made positive.
  static constexpr bool kSigned = false;
  static constexpr int kMinAt = -1;
  GANGLION_INLINE __m256i codes(const uint8_t* p) {
    return lookup(nibbles_16(p + 1), _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
  }
  /// Half the power of two of an E8M0 exponent; the two lowest are subnormal.
  GANGLION_INLINE __m256 scales(const uint8_t* p, size_t count) {
    alignas(8) uint8_t exponents[8] = {};
    for (size_t k = 0; k < count; ++k) exponents[k] = p[k * kBytes];
    const __m256i e = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(exponents)));
    const __m256i normal = _mm256_slli_epi32(_mm256_sub_epi32(e, _mm256_set1_epi32(1)), 23);
    const __m256i subnormal = _mm256_sllv_epi32(_mm256_set1_epi32(0x00200000), e);
    return _mm256_castsi256_ps(_mm256_blendv_epi8(normal, subnormal, _mm256_cmpgt_epi32(_mm256_set1_epi32(2), e)));
  }
};

/// Eight unpacked blocks of one row; those that the row does not have are zero.
struct Group {
  __m256i codes[8];
  __m256 scales;
  __m256 mins;
};

template <class Type>
GANGLION_INLINE void unpack(const uint8_t* p, size_t count, Group* group) {
  for (size_t k = 0; k < 8; ++k) {
    group->codes[k] = k < count ? Type::codes(p + k * Type::kBytes) : _mm256_setzero_si256();
  }
  group->scales = Type::scales(p, count);
  if (Type::kMinAt >= 0) group->mins = gather_halves<Type::kBytes>(p + Type::kMinAt, count);
}

/// Adds the products of a group to the lanes of its blocks. The largest pair that maddubs adds up is
/// 2 * 128 * 127, below 2^15, as activations are at least -127.
template <class Type>
GANGLION_INLINE __m256 add_group(const Group& group, const ActivationRow& x, size_t b, size_t count, __m256 acc) {
  __m256i partial[8];
  for (size_t k = 0; k < 8; ++k) {
    partial[k] = _mm256_setzero_si256();
    if (k >= count) continue;
    __m256i codes = group.codes[k];
    __m256i q = load_256(x.q + 32 * (b + k));
    if (Type::kSigned) {
      q = _mm256_sign_epi8(q, codes);
      codes = _mm256_abs_epi8(codes);
    }
    partial[k] = _mm256_madd_epi16(_mm256_maddubs_epi16(codes, q), _mm256_set1_epi16(1));
  }
  __m256i sums = sum_each_8(partial);
  const __m256i x_sums = _mm256_cvtepi16_epi32(load_128(x.sums + b));
  if (Type::kOffset == 8) sums = _mm256_sub_epi32(sums, _mm256_slli_epi32(x_sums, 3));
  if (Type::kOffset == 16) sums = _mm256_sub_epi32(sums, _mm256_slli_epi32(x_sums, 4));
  if (Type::kOffset == 12) {
    sums = _mm256_sub_epi32(sums, _mm256_add_epi32(_mm256_slli_epi32(x_sums, 3), _mm256_slli_epi32(x_sums, 2)));
  }
  const __m256 x_scales = _mm256_loadu_ps(x.scales + b);
  acc = _mm256_fmadd_ps(_mm256_mul_ps(group.scales, x_scales), _mm256_cvtepi32_ps(sums), acc);
  if (Type::kMinAt >= 0) {
    acc = _mm256_fmadd_ps(_mm256_mul_ps(group.mins, x_scales), _mm256_cvtepi32_ps(x_sums), acc);
  }
  return acc;
}

template <class Type>
struct Kernel {
  template <int T>
  GANGLION_INLINE void row(const MatmulArgs& args, const uint8_t* weights, const uint8_t* x0, float* out) {
    const size_t blocks = args.n / 32;
    const size_t scales_at = activation_scales_of(args.n);
    const size_t sums_at = scales_at + (blocks * 4 + 63) / 64 * 64;
    ActivationRow x[T];
    __m256 acc[T];
    for (int t = 0; t < T; ++t) {
      const uint8_t* p = x0 + static_cast<size_t>(t) * args.x_stride;
      x[t] = {reinterpret_cast<const int8_t*>(p), reinterpret_cast<const float*>(p + scales_at),
              reinterpret_cast<const int16_t*>(p + sums_at)};
      acc[t] = _mm256_setzero_ps();
    }
    size_t b = 0;
    for (; b + 8 <= blocks; b += 8) {
      Group group;
      unpack<Type>(weights + b * Type::kBytes, 8, &group);
      for (int t = 0; t < T; ++t) acc[t] = add_group<Type>(group, x[t], b, 8, acc[t]);
    }
    if (b < blocks) {
      // Lanes without a block keep their bits: adding a zero product would turn -0 into 0.
      const __m256 present = _mm256_castsi256_ps(lanes_below(blocks - b));
      Group group;
      unpack<Type>(weights + b * Type::kBytes, blocks - b, &group);
      for (int t = 0; t < T; ++t) {
        acc[t] = _mm256_blendv_ps(acc[t], add_group<Type>(group, x[t], b, blocks - b, acc[t]), present);
      }
    }
    for (int t = 0; t < T; ++t) out[static_cast<size_t>(t) * args.out_stride] = tree_8(acc[t]);
  }

 private:
  GANGLION_INLINE size_t activation_scales_of(size_t n) { return (n + 63) / 64 * 64; }
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

const MatmulFn* avx2_matmul_small() { return kTable.of; }

}  // namespace ganglion::kernels

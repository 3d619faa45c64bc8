// AVX-512 products of F32, F16 and BF16 weights with float activations: a vector is the 16 lanes of the
// contract. Same bits as reference/matmul.cc.
#include "kernels/x86_avx512vnni/avx512vnni.h"
#include "kernels/x86_avx512vnni/common.h"

namespace ganglion::kernels {
namespace {

// Each type: 16 elements from p on, of which only those in `present` are read.
struct F32 {
  static constexpr size_t kBytes = 4;
  GANGLION_INLINE __m512 load(const uint8_t* p, __mmask16 present) {
    return _mm512_maskz_loadu_ps(present, p);
  }
};

struct F16 {
  static constexpr size_t kBytes = 2;
  GANGLION_INLINE __m512 load(const uint8_t* p, __mmask16 present) {
    return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(present, p));
  }
};

struct BF16 {
  static constexpr size_t kBytes = 2;
  GANGLION_INLINE __m512 load(const uint8_t* p, __mmask16 present) {
    const __m512i words = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(present, p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(words, 16));
  }
};

/// Elements [i, i + 16) of R rows and T tokens.
template <class Type, size_t R, size_t T>
GANGLION_INLINE void add_16(const uint8_t* const* rows, const float* const* x, size_t i, __m512 (*acc)[T]) {
  __m512 w[R];
  for (size_t r = 0; r < R; ++r) w[r] = Type::load(rows[r] + i * Type::kBytes, 0xffff);
  for (size_t t = 0; t < T; ++t) {
    const __m512 v = _mm512_loadu_ps(x[t] + i);
    for (size_t r = 0; r < R; ++r) acc[r][t] = _mm512_fmadd_ps(w[r], v, acc[r][t]);
  }
}

template <class Type, size_t R, size_t T>
[[gnu::noinline]] void multiply(const MatmulArgs& args, size_t r0, size_t t0) {
  const uint8_t* rows[R];
  const float* x[T];
  __m512 acc[R][T];
  const uint8_t* ahead[R];
  for (size_t r = 0; r < R; ++r) {
    rows[r] = args.row(r0 + r);
    ahead[r] = ahead_of(args, r0 + r, T);
  }
#pragma GCC unroll 8
  for (size_t t = 0; t < T; ++t) {
    x[t] = reinterpret_cast<const float*>(args.x + (t0 + t) * args.x_stride);
#pragma GCC unroll 8
    for (size_t r = 0; r < R; ++r) acc[r][t] = _mm512_setzero_ps();
  }
  const size_t n = args.n;
  size_t i = 0;
  for (; i + 16 <= n; i += 16) {
    for (size_t r = 0; r < R; ++r) {
      if (ahead[r] != nullptr) prefetch<16 * Type::kBytes>(ahead[r] + i * Type::kBytes);
    }
    add_16<Type, R, T>(rows, x, i, acc);
  }
  // Lanes without a last element keep their value. Loops over accumulators that were not unrolled would keep
  // them in memory throughout.
  const __mmask16 present = static_cast<__mmask16>((1u << (n - i)) - 1);
#pragma GCC unroll 8
  for (size_t t = 0; t < T; ++t) {
    const __m512 v = _mm512_maskz_loadu_ps(present, x[t] + i);
#pragma GCC unroll 8
    for (size_t r = 0; r < R; ++r) {
      const __m512 w = Type::load(rows[r] + i * Type::kBytes, present);
      const __m512 sum = _mm512_mask3_fmadd_ps(w, v, acc[r][t], present);
      args.out[(t0 + t) * args.out_stride + r0 + r] =
          tree_16(_mm512_castps512_ps256(sum), _mm512_extractf32x8_ps(sum, 1));
    }
  }
}

template <class Type>
void matmul(const MatmulArgs& args) {
  for (size_t r0 = 0; r0 < args.rows; r0 += kRowsAtOnce) {
    const size_t r1 = args.rows - r0 < kRowsAtOnce ? args.rows : r0 + kRowsAtOnce;
    for_each_token_group(args.tokens, [&]<size_t T>(size_t t) {
      // Eight streams from memory for one token; up to 24 sums in registers for six.
      constexpr size_t kRows = T == 1 ? 8 : 4;
      size_t r = r0;
      for (; r + kRows <= r1; r += kRows) multiply<Type, kRows, T>(args, r, t);
      for (; r < r1; ++r) multiply<Type, 1, T>(args, r, t);
    });
  }
}

struct Table {
  MatmulFn of[kTypeSlots];
};

constexpr Table make_table() {
  Table table{};
  table.of[static_cast<size_t>(TensorType::kF32)] = matmul<F32>;
  table.of[static_cast<size_t>(TensorType::kF16)] = matmul<F16>;
  table.of[static_cast<size_t>(TensorType::kBF16)] = matmul<BF16>;
  return table;
}

constexpr Table kTable = make_table();

}  // namespace

const MatmulFn* avx512vnni_matmul_float() {
  return kTable.of;
}

}  // namespace ganglion::kernels

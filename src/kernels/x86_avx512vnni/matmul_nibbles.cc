// AVX-512 VNNI products of two to six tokens with Q4_0. Activations are arranged once per call, so that the
// low nibbles of four blocks are one operand and the high ones another: the 32 products of a block are then
// four sums, not eight, and two tokens share the rest of the way. Same bits as reference/matmul.cc: integer
// sums are exact in any order, and lane b of a token's accumulator sees the blocks that it sees there.
#include "kernels/x86_avx512vnni/avx512vnni.h"
#include "kernels/x86_avx512vnni/common.h"

namespace ganglion::kernels {
namespace {

constexpr size_t kBlockBytes = 18;
constexpr size_t kGroupBlocks = 8;
constexpr size_t kGroupElements = 32 * kGroupBlocks;
constexpr size_t kMostTokens = 6;
constexpr size_t kFewestRows = 3;          // Fewer do not repay the arranging.
constexpr size_t kMostBytes = 112 * 1024;  // Of all tokens' codes, on the stack.

/// The activations of two tokens that meet eight blocks. Lane 4 j + 2 t + h of scales and sums is of token t
/// and block j + 4 h, as in all vectors of products below.
struct alignas(64) PairGroup {
  uint8_t q[2][2][2][64];  // [token][half of the group][low or high nibbles][block of the half, 16 each]
  float scales[16];
  int32_t offsets[16];  // 8 times the sum of a block's activations: codes stand 8 above their value.
};

// groups [n / 256][pairs]; an odd last token stands twice.
template <size_t kPairs>
GANGLION_INLINE void arrange(const MatmulArgs& args, PairGroup* groups) {
  const size_t blocks = args.n / 32;
  const size_t scales_at = activation_scales_offset(args.n);
  const size_t sums_at = activation_sums_offset(ActivationForm::kQ8Block32, args.n);
  for (size_t i = 0; i < 2 * kPairs; ++i) {
    const uint8_t* x = args.x + (i < args.tokens ? i : args.tokens - 1) * args.x_stride;
    const auto* scales = reinterpret_cast<const float*>(x + scales_at);
    const auto* sums = reinterpret_cast<const int16_t*>(x + sums_at);
    const size_t t = i % 2;
    for (size_t g = 0; g < blocks / kGroupBlocks; ++g) {
      PairGroup& to = groups[g * kPairs + i / 2];
      for (size_t h = 0; h < 2; ++h) {
        // Of two blocks each: quarters 0 and 2 are low halves, 1 and 3 high ones.
        const __m512i first = load_512(x + g * kGroupElements + 128 * h);
        const __m512i second = load_512(x + g * kGroupElements + 128 * h + 64);
        store_512(to.q[t][h][0], _mm512_shuffle_i64x2(first, second, _MM_SHUFFLE(2, 0, 2, 0)));
        store_512(to.q[t][h][1], _mm512_shuffle_i64x2(first, second, _MM_SHUFFLE(3, 1, 3, 1)));
        for (size_t j = 0; j < 4; ++j) {
          const size_t block = g * kGroupBlocks + 4 * h + j;
          to.scales[4 * j + 2 * t + h] = scales[block];
          to.offsets[4 * j + 2 * t + h] = 8 * sums[block];
        }
      }
    }
  }
}

/// Sums of two int32 each of one token: four per block, at most 8 * 15 * 127 = 15240, become two.
GANGLION_INLINE __m512i sums_of_token(const __m512i* codes, const uint8_t (*q)[2][64]) {
  __m512i halves[2];
  for (size_t h = 0; h < 2; ++h) {
    halves[h] = _mm512_dpbusd_epi32(_mm512_setzero_si512(), codes[2 * h], load_512(q[h][0]));
    halves[h] = _mm512_dpbusd_epi32(halves[h], codes[2 * h + 1], load_512(q[h][1]));
  }
  return _mm512_madd_epi16(_mm512_packs_epi32(halves[0], halves[1]), _mm512_set1_epi16(1));
}

template <size_t kPairs>
GANGLION_INLINE void multiply_row(const MatmulArgs& args, size_t r, const PairGroup* groups) {
  const uint8_t* const weights = args.row(r);
  const uint8_t* const ahead = ahead_of(args, r, 1);
  const __m512i of_lane = _mm512_setr_epi32(0, 4, 0, 4, 1, 5, 1, 5, 2, 6, 2, 6, 3, 7, 3, 7);
  __m512 acc[kPairs];
  for (size_t i = 0; i < kPairs; ++i) acc[i] = _mm512_setzero_ps();
  const size_t group_count = args.n / kGroupElements;
  for (size_t g = 0; g < group_count; ++g) {
    const uint8_t* p = weights + g * kGroupBlocks * kBlockBytes;
    if (ahead != nullptr) prefetch<kGroupBlocks * kBlockBytes>(ahead + g * kGroupBlocks * kBlockBytes);
    const __m512 scales = _mm512_permutexvar_ps(of_lane, _mm512_castps256_ps512(half_scales<kBlockBytes>(p)));
    __m512i codes[4];
    for (size_t h = 0; h < 2; ++h) {
      const uint8_t* q = p + 4 * h * kBlockBytes + 2;  // Behind the scale.
      const __m512i bytes = load_four(q, q + kBlockBytes, q + 2 * kBlockBytes, q + 3 * kBlockBytes);
      codes[2 * h] = low_nibbles(bytes);
      codes[2 * h + 1] = low_nibbles(_mm512_srli_epi16(bytes, 4));
    }
    for (size_t i = 0; i < kPairs; ++i) {
      const PairGroup& x = groups[g * kPairs + i];
      // Two sums of at most 30480 per block and token become one.
      const __m512i both = _mm512_packs_epi32(sums_of_token(codes, x.q[0]), sums_of_token(codes, x.q[1]));
      const __m512i products =
          _mm512_sub_epi32(_mm512_madd_epi16(both, _mm512_set1_epi16(1)), load_512(x.offsets));
      acc[i] = _mm512_fmadd_ps(_mm512_mul_ps(scales, _mm512_load_ps(x.scales)), _mm512_cvtepi32_ps(products),
                               acc[i]);
    }
  }
  const __m512i first = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 0, 0, 0, 0, 0, 0, 0, 0);
  const __m512i second = _mm512_setr_epi32(2, 6, 10, 14, 3, 7, 11, 15, 0, 0, 0, 0, 0, 0, 0, 0);
  for (size_t i = 0; i < kPairs; ++i) {
    float* out = args.out + 2 * i * args.out_stride + r;
    *out = tree_8(_mm512_castps512_ps256(_mm512_permutexvar_ps(first, acc[i])));
    if (2 * i + 1 < args.tokens)
      out[args.out_stride] = tree_8(_mm512_castps512_ps256(_mm512_permutexvar_ps(second, acc[i])));
  }
}

template <size_t kPairs>
void multiply(const MatmulArgs& args) {
  PairGroup groups[kMostBytes / (2 * kGroupElements)];
  arrange<kPairs>(args, groups);
  for (size_t r = 0; r < args.rows; ++r) multiply_row<kPairs>(args, r, groups);
}

}  // namespace

bool avx512vnni_try_matmul_nibbles(const MatmulArgs& args) {
  const size_t pairs = (args.tokens + 1) / 2;
  const bool suits = args.tokens >= 2 && args.tokens <= kMostTokens && args.rows >= kFewestRows &&
                     args.n > 0 && args.n % kGroupElements == 0 && 2 * pairs * args.n <= kMostBytes;
  if (!suits) return false;
  if (pairs == 1) multiply<1>(args);
  if (pairs == 2) multiply<2>(args);
  if (pairs == 3) multiply<3>(args);
  return true;
}

}  // namespace ganglion::kernels

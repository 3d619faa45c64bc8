// ARM products of the types with blocks of 32: four blocks at a time, one per lane of an accumulator.
// Compiled for NEON and for the dot product instructions. Same bits as reference/matmul.cc.
#include "kernels/arm_neon/small_blocks.h"

namespace ganglion::kernels {
namespace {

/// Adds four blocks of a row, the first of them number b, to their lanes of T tokens; their activations begin
/// at q[t]. Codes stay in registers for all tokens.
template <class Type, int T>
GANGLION_INLINE void add_four(const uint8_t* p, const int8_t* const* q, const ActivationRow* x, size_t b,
                              float32x4_t* acc) {
  const FourBlocks blocks = {{p, p + Type::kBytes, p + 2 * Type::kBytes, p + 3 * Type::kBytes}};
  int32x4_t sums[T][4];
  for (size_t k = 0; k < 4; ++k) {
    const Block block = Type::unpack(blocks.p[k]);
    for (int t = 0; t < T; ++t) {
      const int32x4_t first = dot_16(vdupq_n_s32(0), block.low, vld1q_s8(q[t] + 32 * k));
      sums[t][k] = dot_16(first, block.high, vld1q_s8(q[t] + 32 * k + 16));
    }
  }
  const float32x4_t scales = Type::scales(blocks);
  for (int t = 0; t < T; ++t) {
    const float32x4_t x_scales = vld1q_f32(x[t].scales + b);
    acc[t] = vfmaq_f32(acc[t], vmulq_f32(scales, x_scales), vcvtq_f32_s32(sum_each_4(sums[t])));
    if (Type::kHasMin) {
      const float32x4_t x_sums = vcvtq_f32_s32(vmovl_s16(vld1_s16(x[t].sums + b)));
      acc[t] = vfmaq_f32(acc[t], vmulq_f32(Type::mins(blocks), x_scales), x_sums);
    }
  }
}

template <class Type>
struct Kernel {
  template <int T>
  GANGLION_INLINE void row(const MatmulArgs& args, size_t r, const uint8_t* x0, float* out) {
    const uint8_t* const weights = args.row(r);
    const size_t blocks = args.n / 32;
    ActivationRow x[T];
    float32x4_t low[T], high[T];
    for (int t = 0; t < T; ++t) {
      const uint8_t* p = x0 + static_cast<size_t>(t) * args.x_stride;
      x[t] = activation_row(p, ActivationForm::kQ8Block32, args.n);
      low[t] = high[t] = vdupq_n_f32(0);
    }
    const uint8_t* const ahead = ahead_of(args, r, T);
    size_t b = 0;
    for (; b + 8 <= blocks; b += 8) {
      if (ahead != nullptr) prefetch<8 * Type::kBytes>(ahead + b * Type::kBytes);
      add_next<T>(weights, x, b, low);
      add_next<T>(weights, x, b + 4, high);
    }
    if (b + 4 <= blocks) {
      add_next<T>(weights, x, b, low);
      if (b + 4 < blocks) add_last<T>(weights, x, b + 4, blocks - b - 4, high);
    } else if (b < blocks) {
      add_last<T>(weights, x, b, blocks - b, low);
    }
    for (int t = 0; t < T; ++t) out[static_cast<size_t>(t) * args.out_stride] = tree_8(low[t], high[t]);
  }

 private:
  template <int T>
  GANGLION_INLINE void add_next(const uint8_t* weights, const ActivationRow* x, size_t b, float32x4_t* acc) {
    const int8_t* q[T];
    for (int t = 0; t < T; ++t) q[t] = x[t].q + 32 * b;
    add_four<Type, T>(weights + b * Type::kBytes, q, x, b, acc);
  }

  /// The last one to three blocks, from copies padded with zeros.
  template <int T>
  static void add_last(const uint8_t* weights, const ActivationRow* x, size_t b, size_t count,
                       float32x4_t* acc) {
    uint8_t padded[4 * Type::kBytes] = {};
    memcpy(padded, weights + b * Type::kBytes, count * Type::kBytes);
    const uint32x4_t present = lanes_below(count);
    for (int t = 0; t < T; ++t) {
      int8_t padded_q[128] = {};
      memcpy(padded_q, x[t].q + 32 * b, 32 * count);
      const int8_t* q = padded_q;
      // Rows end on a multiple of 64 bytes, so four scales and sums are there to read.
      float32x4_t added = acc[t];
      add_four<Type, 1>(padded, &q, x + t, b, &added);
      // Lanes without a block keep their value, whatever lies behind the last scale.
      acc[t] = vbslq_f32(present, added, acc[t]);
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

const MatmulFn* GANGLION_ARM_PART(matmul_small)() {
  return kTable.of;
}

}  // namespace ganglion::kernels

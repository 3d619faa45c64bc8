// ARM products of the types with super-blocks of 256: one int32 vector per super-block, sub-scales included;
// four super-blocks are then summed at once, one per lane of an accumulator. Compiled for NEON and for the
// dot product instructions. Same bits as reference/matmul.cc.
#include "kernels/arm_neon/super_blocks.h"

namespace ganglion::kernels {
namespace {

/// Partial sums of up to four super-blocks for T tokens, and the scales of these super-blocks.
template <int T>
struct Partials {
  int32x4_t sums[T][4];
  int32x4_t mins[T][4];
  uint16_t scales[4];
  uint16_t min_scales[4];
};

/// Four int32 whose sum is that of the sub-minima times the sums of 16 activations.
GANGLION_INLINE int32x4_t min_products(uint8x16_t sub_mins, const int16_t* sums) {
  const int16x8_t low = vreinterpretq_s16_u16(vmovl_u8(vget_low_u8(sub_mins)));
  const int16x8_t high = vreinterpretq_s16_u16(vmovl_high_u8(sub_mins));
  const int16x8_t x_low = vld1q_s16(sums), x_high = vld1q_s16(sums + 8);
  int32x4_t products = vmull_s16(vget_low_s16(low), vget_low_s16(x_low));
  products = vmlal_high_s16(products, low, x_low);
  products = vmlal_s16(products, vget_low_s16(high), vget_low_s16(x_high));
  return vmlal_high_s16(products, high, x_high);
}

/// Stores, for each token, four int32 whose sum is that of super-block b, number k of its four; likewise of
/// its minima.
template <class Type, int T>
GANGLION_INLINE void add_super(const Super& super, const ActivationRow* x, size_t b, size_t k,
                               Partials<T>* partials) {
  int32_t scales[16];
  const int16x8_t low = vmovl_s8(vget_low_s8(super.sub_scales)), high = vmovl_high_s8(super.sub_scales);
  vst1q_s32(scales, vmovl_s16(vget_low_s16(low)));
  vst1q_s32(scales + 4, vmovl_high_s16(low));
  vst1q_s32(scales + 8, vmovl_s16(vget_low_s16(high)));
  vst1q_s32(scales + 12, vmovl_high_s16(high));
  int32x4_t sums[T];
  for (int t = 0; t < T; ++t) sums[t] = vdupq_n_s32(0);
  for (size_t g = 0; g < 16; g += Type::kGroup / 16) {
    for (int t = 0; t < T; ++t) {
      const int8_t* q = x[t].q + 256 * b + 16 * g;
      int32x4_t dots = dot_16(vdupq_n_s32(0), super.values[g], vld1q_s8(q));
      if (Type::kGroup == 32) dots = dot_16(dots, super.values[g + 1], vld1q_s8(q + 16));
      sums[t] = vmlaq_n_s32(sums[t], dots, scales[g]);
    }
  }
  for (int t = 0; t < T; ++t) {
    partials->sums[t][k] = sums[t];
    if (Type::kHasMin) partials->mins[t][k] = min_products(super.sub_mins, x[t].sums + 16 * b);
  }
}

/// Adds super-blocks [b, b + count) to their lanes of T tokens: acc[t][0] has the first four lanes.
template <class Type, int T>
GANGLION_INLINE void add_group(const Partials<T>& partials, const ActivationRow* x, size_t b, size_t count,
                               float32x4_t (*acc)[2]) {
  const uint32x4_t present = lanes_below(count);
  const float32x4_t scales = from_halves(vld1_u16(partials.scales));
  for (int t = 0; t < T; ++t) {
    float32x4_t& lanes = acc[t][b / 4 % 2];
    const float32x4_t x_scales = vld1q_f32(x[t].scales + b);
    const float32x4_t sums = vcvtq_f32_s32(sum_each_4(partials.sums[t]));
    float32x4_t added = vfmaq_f32(lanes, vmulq_f32(scales, x_scales), sums);
    if (Type::kHasMin) {
      const float32x4_t min_scales = from_halves(vld1_u16(partials.min_scales));
      const float32x4_t mins = vcvtq_f32_s32(sum_each_4(partials.mins[t]));
      added = vfmsq_f32(added, vmulq_f32(min_scales, x_scales), mins);
    }
    // Lanes without a super-block keep their value, whatever lies behind the last scale.
    lanes = vbslq_f32(present, added, lanes);
  }
}

template <class Type>
struct Kernel {
  template <int T>
  GANGLION_INLINE void row(const MatmulArgs& args, size_t r, const uint8_t* x0, float* out) {
    const uint8_t* const weights = args.row(r);
    const size_t supers = args.n / 256;
    ActivationRow x[T];
    float32x4_t acc[T][2];
    for (int t = 0; t < T; ++t) {
      const uint8_t* p = x0 + static_cast<size_t>(t) * args.x_stride;
      x[t] = activation_row(p, ActivationForm::kQ8Block256, args.n);
      acc[t][0] = acc[t][1] = vdupq_n_f32(0);
    }
    const uint8_t* const ahead = ahead_of(args, r, T);
    Partials<T> partials;
    for (size_t b = 0; b < supers; b += 4) {
      const size_t count = supers - b < 4 ? supers - b : 4;
      if (count < 4) memset(&partials, 0, sizeof partials);
      for (size_t k = 0; k < count; ++k) {
        const uint8_t* p = weights + (b + k) * Type::kBytes;
        Super super;
        if (ahead != nullptr) prefetch<Type::kBytes>(ahead + (b + k) * Type::kBytes);
        Type::unpack(p, &super);
        add_super<Type, T>(super, x, b + k, k, &partials);
        partials.scales[k] = load_u16(p + Type::kScaleAt);
        if (Type::kHasMin) partials.min_scales[k] = load_u16(p + Type::kMinAt);
      }
      add_group<Type, T>(partials, x, b, count, acc);
    }
    for (int t = 0; t < T; ++t) out[static_cast<size_t>(t) * args.out_stride] = tree_8(acc[t][0], acc[t][1]);
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

const MatmulFn* GANGLION_ARM_PART(matmul_super)() {
  return kTable.of;
}

}  // namespace ganglion::kernels

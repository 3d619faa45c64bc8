// ARM products of many tokens with the types of 256-element super-blocks: tiles of four rows, unpacked on the
// stack; see tiles.h. Compiled for every ARM table. Same bits as reference/matmul.cc.
#include "kernels/arm_neon/super_blocks.h"
#include "kernels/arm_neon/tiles.h"

namespace ganglion::kernels {
namespace {

/// One super-block of four rows. Types with groups of 32 have each sub-scale and sub-minimum twice.
struct Scratch {
  Quad values[16];
  int32_t sub_scales[16][kTileRows];
  int16_t sub_mins[16][kTileRows];
  float scales[kTileRows];
  float min_scales[kTileRows];
  Lanes lanes[kTileTokens];
};

/// Widens bytes of four rows, given by row, to one vector of rows per group.
GANGLION_INLINE void put_sub_scales(int8x16x4_t by_row, Scratch* scratch) {
  int8_t by_group[64];
  vst4q_s8(by_group, by_row);
  for (size_t g = 0; g < 16; g += 2) {
    const int16x8_t two = vmovl_s8(vld1_s8(by_group + 4 * g));
    vst1q_s32(scratch->sub_scales[g], vmovl_s16(vget_low_s16(two)));
    vst1q_s32(scratch->sub_scales[g + 1], vmovl_high_s16(two));
  }
}

GANGLION_INLINE void put_sub_mins(uint8x16x4_t by_row, Scratch* scratch) {
  uint8_t by_group[64];
  vst4q_u8(by_group, by_row);
  for (size_t g = 0; g < 16; g += 2) {
    const int16x8_t two = vreinterpretq_s16_u16(vmovl_u8(vld1_u8(by_group + 4 * g)));
    vst1_s16(scratch->sub_mins[g], vget_low_s16(two));
    vst1_s16(scratch->sub_mins[g + 1], vget_high_s16(two));
  }
}

template <class Type>
void unpack(const TileRows& rows, Scratch* scratch) {
  Super of_row[kTileRows];
  uint16_t scales[kTileRows], min_scales[kTileRows] = {};
  for (size_t r = 0; r < kTileRows; ++r) {
    Type::unpack(rows.p[r], &of_row[r]);
    scales[r] = load_u16(rows.p[r] + Type::kScaleAt);
    if (Type::kHasMin) min_scales[r] = load_u16(rows.p[r] + Type::kMinAt);
  }
  for (size_t g = 0; g < 16; ++g) {
    scratch->values[g] =
        arrange(of_row[0].values[g], of_row[1].values[g], of_row[2].values[g], of_row[3].values[g]);
  }
  put_sub_scales({{of_row[0].sub_scales, of_row[1].sub_scales, of_row[2].sub_scales, of_row[3].sub_scales}},
                 scratch);
  vst1q_f32(scratch->scales, from_halves(vld1_u16(scales)));
  if (Type::kHasMin) {
    put_sub_mins({{of_row[0].sub_mins, of_row[1].sub_mins, of_row[2].sub_mins, of_row[3].sub_mins}}, scratch);
    vst1q_f32(scratch->min_scales, from_halves(vld1_u16(min_scales)));
  }
}

/// Sub-minima times the sums of activations, by row.
GANGLION_INLINE int32x4_t min_products(const Scratch& scratch, const int16_t* sums) {
  int32x4_t products = vdupq_n_s32(0);
  for (size_t g = 0; g < 16; ++g) products = vmlal_n_s16(products, vld1_s16(scratch.sub_mins[g]), sums[g]);
  return products;
}

/// Tokens t0 + t to t0 + t + T - 1, number t of their tile, times super-block b.
template <class Type, size_t T>
[[gnu::noinline]] void multiply_super(const MatmulArgs& args, size_t t0, size_t t, size_t b,
                                      Scratch* scratch) {
  ActivationRow x[T];
  for (size_t i = 0; i < T; ++i) {
    const uint8_t* row = args.x + (t0 + t + i) * args.x_stride;
    x[i] = activation_row(row, ActivationForm::kQ8Block256, args.n);
  }
  Sums<T> totals = no_sums<T>();
  for (size_t g = 0; g < 16; g += Type::kGroup / 16) {
    Sums<T> sums = no_sums<T>();
    for (size_t part = g; part < g + Type::kGroup / 16; ++part) {
      int8x16_t q[T];
      for (size_t i = 0; i < T; ++i) q[i] = vld1q_s8(x[i].q + 256 * b + 16 * part);
      multiply<T>(scratch->values[part], q, &sums);
    }
    add_scaled<T>(sums, vld1q_s32(scratch->sub_scales[g]), &totals);
  }
  const float32x4_t scales = vld1q_f32(scratch->scales);
  for (size_t i = 0; i < T; ++i) {
    float* lane = scratch->lanes[t + i][b % 8];
    const float x_scale = x[i].scales[b];
    const float32x4_t products = vcvtq_f32_s32(sums_of<T>(totals, i));
    float32x4_t acc = vfmaq_f32(vld1q_f32(lane), vmulq_n_f32(scales, x_scale), products);
    if (Type::kHasMin) {
      const float32x4_t mins = vcvtq_f32_s32(min_products(*scratch, x[i].sums + 16 * b));
      acc = vfmsq_f32(acc, vmulq_n_f32(vld1q_f32(scratch->min_scales), x_scale), mins);
    }
    vst1q_f32(lane, acc);
  }
}

template <class Type>
void tile(const MatmulArgs& args, size_t r0, size_t t0, size_t tokens, Scratch* scratch) {
  memset(scratch->lanes, 0, tokens * sizeof(Lanes));
  for (size_t b = 0; b < args.n / 256; ++b) {
    unpack<Type>(tile_rows(args, r0, b * Type::kBytes), scratch);
    for_each_token_group(tokens,
                         [&]<size_t T>(size_t t) { multiply_super<Type, T>(args, t0, t, b, scratch); });
  }
  store_lanes(args, r0, t0, tokens, scratch->lanes);
}

template <class Type>
void gemm(const MatmulArgs& args) {
  if (args.tokens < kFewestTokens || args.rows == 1)
    return GANGLION_ARM_ROWS(matmul_super)()[static_cast<size_t>(Type::kType)](args);
  Scratch scratch;
  for_each_row_tile(args,
                    [&](size_t r0, size_t t0, size_t tokens) { tile<Type>(args, r0, t0, tokens, &scratch); });
}

struct Table {
  MatmulFn of[kTypeSlots];
};

constexpr Table make_table() {
  Table table{};
  table.of[static_cast<size_t>(TensorType::kQ2_K)] = gemm<Q2K>;
  table.of[static_cast<size_t>(TensorType::kQ3_K)] = gemm<Q3K>;
  table.of[static_cast<size_t>(TensorType::kQ4_K)] = gemm<Q4K>;
  table.of[static_cast<size_t>(TensorType::kQ5_K)] = gemm<Q5K>;
  table.of[static_cast<size_t>(TensorType::kQ6_K)] = gemm<Q6K>;
  table.of[static_cast<size_t>(TensorType::kIQ4_XS)] = gemm<Iq4Xs>;
  return table;
}

constexpr Table kTable = make_table();

}  // namespace

const MatmulFn* GANGLION_ARM_PART(gemm_super)() {
  return kTable.of;
}

}  // namespace ganglion::kernels

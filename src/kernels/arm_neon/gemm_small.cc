// ARM products of many tokens with the types of 32-element blocks: tiles of four rows, unpacked on the stack;
// see tiles.h. Compiled for every ARM table. Same bits as reference/matmul.cc.
#include "kernels/arm_neon/small_blocks.h"
#include "kernels/arm_neon/tiles.h"

namespace ganglion::kernels {
namespace {

/// Blocks unpacked at once: the eight lanes of the contract.
constexpr size_t kPieceBlocks = 8;

struct Scratch {
  Quad codes[kPieceBlocks][2];  ///< Elements 0 to 15 and 16 to 31 of a block.
  float scales[kPieceBlocks][kTileRows];
  float mins[kPieceBlocks][kTileRows];
  Lanes lanes[kTileTokens];
};

template <class Type>
void unpack(const MatmulArgs& args, size_t r0, size_t b0, size_t count, Scratch* scratch) {
  const TileRows rows = tile_rows(args, r0, b0 * Type::kBytes);
  for (size_t b = 0; b < count; ++b) {
    FourBlocks blocks;
    Block of_row[kTileRows];
    for (size_t r = 0; r < kTileRows; ++r) {
      blocks.p[r] = rows.p[r] + b * Type::kBytes;
      of_row[r] = Type::unpack(blocks.p[r]);
    }
    scratch->codes[b][0] = arrange(of_row[0].low, of_row[1].low, of_row[2].low, of_row[3].low);
    scratch->codes[b][1] = arrange(of_row[0].high, of_row[1].high, of_row[2].high, of_row[3].high);
    vst1q_f32(scratch->scales[b], Type::scales(blocks));
    if (Type::kHasMin) vst1q_f32(scratch->mins[b], Type::mins(blocks));
  }
}

/// Tokens t0 + t to t0 + t + T - 1, number t of their tile, times blocks [b0, b0 + count).
template <class Type, size_t T>
[[gnu::noinline]] void multiply_piece(const MatmulArgs& args, size_t t0, size_t t, size_t b0, size_t count,
                                      Scratch* scratch) {
  ActivationRow x[T];
  for (size_t i = 0; i < T; ++i) {
    const uint8_t* row = args.x + (t0 + t + i) * args.x_stride;
    x[i] = activation_row(row, ActivationForm::kQ8Block32, args.n);
  }
  for (size_t b = 0; b < count; ++b) {
    Sums<T> sums = no_sums<T>();
    for (size_t half = 0; half < 2; ++half) {
      int8x16_t q[T];
      for (size_t i = 0; i < T; ++i) q[i] = vld1q_s8(x[i].q + 32 * (b0 + b) + 16 * half);
      multiply<T>(scratch->codes[b][half], q, &sums);
    }
    const float32x4_t scales = vld1q_f32(scratch->scales[b]);
    for (size_t i = 0; i < T; ++i) {
      float* lane = scratch->lanes[t + i][b];
      const float x_scale = x[i].scales[b0 + b];
      const float32x4_t products = vcvtq_f32_s32(sums_of<T>(sums, i));
      float32x4_t acc = vfmaq_f32(vld1q_f32(lane), vmulq_n_f32(scales, x_scale), products);
      if (Type::kHasMin) {
        const float32x4_t mins = vmulq_n_f32(vld1q_f32(scratch->mins[b]), x_scale);
        acc = vfmaq_f32(acc, mins, vdupq_n_f32(static_cast<float>(x[i].sums[b0 + b])));
      }
      vst1q_f32(lane, acc);
    }
  }
}

template <class Type>
void tile(const MatmulArgs& args, size_t r0, size_t t0, size_t tokens, Scratch* scratch) {
  memset(scratch->lanes, 0, tokens * sizeof(Lanes));
  const size_t blocks = args.n / 32;
  for (size_t b0 = 0; b0 < blocks; b0 += kPieceBlocks) {
    const size_t count = blocks - b0 < kPieceBlocks ? blocks - b0 : kPieceBlocks;
    unpack<Type>(args, r0, b0, count, scratch);
    for_each_token_group(
        tokens, [&]<size_t T>(size_t t) { multiply_piece<Type, T>(args, t0, t, b0, count, scratch); });
  }
  store_lanes(args, r0, t0, tokens, scratch->lanes);
}

template <class Type>
void gemm(const MatmulArgs& args) {
  if (args.tokens < kFewestTokens || args.rows == 1)
    return GANGLION_ARM_ROWS(matmul_small)()[static_cast<size_t>(Type::kType)](args);
  Scratch scratch;
  for_each_row_tile(args,
                    [&](size_t r0, size_t t0, size_t tokens) { tile<Type>(args, r0, t0, tokens, &scratch); });
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

const MatmulFn* GANGLION_ARM_PART(gemm_small)() {
  return kTable.of;
}

}  // namespace ganglion::kernels

// Products of the types without a kernel of their own: the reference dequantises, NEON multiplies.
#include "kernels/arm_neon/common.h"

namespace ganglion::kernels {
namespace {

/// Elements dequantised at once: a multiple of every block and of the 16 lanes.
constexpr size_t kChunk = 256;
/// Tokens that share a dequantised piece; their lanes take 2 KiB of stack.
constexpr size_t kTokenTile = 32;

/// The 16 lanes of each token.
using Lanes = float32x4_t[kTokenTile][4];

/// `count` is a multiple of 16, as every block of these types is.
GANGLION_INLINE void add_chunk(const float* w, size_t count, const uint8_t* x, size_t x_stride, size_t tile,
                               Lanes lanes) {
  for (size_t t = 0; t < tile; ++t) {
    const float* v = reinterpret_cast<const float*>(x + t * x_stride);
    float32x4_t acc[4];
    for (size_t k = 0; k < 4; ++k) acc[k] = lanes[t][k];
    for (size_t i = 0; i < count; i += 16) {
      for (size_t k = 0; k < 4; ++k) {
        acc[k] = vfmaq_f32(acc[k], vld1q_f32(w + i + 4 * k), vld1q_f32(v + i + 4 * k));
      }
    }
    for (size_t k = 0; k < 4; ++k) lanes[t][k] = acc[k];
  }
}

template <TensorType kType, size_t kBlock, size_t kBytes>
void matmul(const MatmulArgs& args) {
  const DequantizeFn dequantize = reference_table().dequantize[static_cast<size_t>(kType)];
  for (size_t r = 0; r < args.rows; ++r) {
    const uint8_t* row = args.row(r);
    for (size_t t0 = 0; t0 < args.tokens; t0 += kTokenTile) {
      const size_t tile = args.tokens - t0 < kTokenTile ? args.tokens - t0 : kTokenTile;
      Lanes lanes;
      memset(lanes, 0, tile * sizeof lanes[0]);
      for (size_t begin = 0; begin < args.n; begin += kChunk) {
        float w[kChunk];
        const size_t count = args.n - begin < kChunk ? args.n - begin : kChunk;
        dequantize(row + begin / kBlock * kBytes, count, w);
        const uint8_t* x = args.x + t0 * args.x_stride + begin * sizeof(float);
        add_chunk(w, count, x, args.x_stride, tile, lanes);
      }
      for (size_t t = 0; t < tile; ++t) args.out[(t0 + t) * args.out_stride + r] = tree_16(lanes[t]);
    }
  }
}

struct Table {
  MatmulFn of[kTypeSlots];
};

constexpr Table make_table() {
  using T = TensorType;
  Table table{};
  const auto set = [&](T type, MatmulFn fn) { table.of[static_cast<size_t>(type)] = fn; };
  set(T::kIQ2_XXS, matmul<T::kIQ2_XXS, 256, 66>);
  set(T::kIQ2_XS, matmul<T::kIQ2_XS, 256, 74>);
  set(T::kIQ2_S, matmul<T::kIQ2_S, 256, 82>);
  set(T::kIQ3_XXS, matmul<T::kIQ3_XXS, 256, 98>);
  set(T::kIQ3_S, matmul<T::kIQ3_S, 256, 110>);
  set(T::kIQ1_S, matmul<T::kIQ1_S, 256, 50>);
  set(T::kIQ1_M, matmul<T::kIQ1_M, 256, 56>);
  set(T::kTQ1_0, matmul<T::kTQ1_0, 256, 54>);
  set(T::kTQ2_0, matmul<T::kTQ2_0, 256, 66>);
  set(T::kNVFP4, matmul<T::kNVFP4, 64, 36>);
  return table;
}

constexpr Table kTable = make_table();

}  // namespace

const MatmulFn* neon_matmul_dequantized() {
  return kTable.of;
}

}  // namespace ganglion::kernels

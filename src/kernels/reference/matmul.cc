// Scalar products, one instance per type, straight from the contract in kernel_table.h.
#include <cmath>

#include "kernels/reference/blocks.h"
#include "kernels/reference/reference.h"

namespace ganglion::kernels {
namespace {

/// Adds lanes i and i + width for width = lanes / 2, .., 1.
float tree_sum(float* acc, size_t lanes) {
  for (size_t width = lanes / 2; width > 0; width /= 2) {
    for (size_t i = 0; i < width; ++i) acc[i] += acc[i + width];
  }
  return acc[0];
}

/// An activation row taken apart.
struct Row {
  const int8_t* q;
  const float* scales;
  const int16_t* sums;
};

Row activation_row(const MatmulArgs& args, ActivationForm form, size_t t) {
  const uint8_t* row = args.x + t * args.x_stride;
  return {reinterpret_cast<const int8_t*>(row),
          reinterpret_cast<const float*>(row + activation_scales_offset(args.n)),
          reinterpret_cast<const int16_t*>(row + activation_sums_offset(form, args.n))};
}

template <auto kUnpack, size_t kBytes, bool kHasMin>
float dot_small(const uint8_t* weights, const Row& x, size_t n) {
  float acc[8] = {};
  for (size_t b = 0; b < n / 32; ++b) {
    SmallBlock block;
    kUnpack(weights + b * kBytes, &block);
    int32_t sum = 0;
    for (size_t i = 0; i < 32; ++i) sum += block.q[i] * x.q[32 * b + i];
    float& lane = acc[b % 8];
    lane = std::fmaf(block.scale * x.scales[b], static_cast<float>(sum), lane);
    if (kHasMin) lane = std::fmaf(block.min * x.scales[b], static_cast<float>(x.sums[b]), lane);
  }
  return tree_sum(acc, 8);
}

template <auto kUnpack, size_t kBytes, bool kHasMin>
float dot_super(const uint8_t* weights, const Row& x, size_t n) {
  float acc[8] = {};
  for (size_t b = 0; b < n / 256; ++b) {
    SuperBlock block;
    kUnpack(weights + b * kBytes, &block);
    int32_t sum = 0;
    int32_t min_sum = 0;
    for (size_t g = 0; g < 16; ++g) {
      int32_t group = 0;
      for (size_t i = 16 * g; i < 16 * g + 16; ++i) group += block.q[i] * x.q[256 * b + i];
      sum += block.sub_scale[g] * group;
      if (kHasMin) min_sum += block.sub_min[g] * x.sums[16 * b + g];
    }
    float& lane = acc[b % 8];
    lane = std::fmaf(block.scale * x.scales[b], static_cast<float>(sum), lane);
    if (kHasMin) lane = std::fmaf(-(block.min_scale * x.scales[b]), static_cast<float>(min_sum), lane);
  }
  return tree_sum(acc, 8);
}

template <auto kDot, ActivationForm kForm>
void matmul_int(const MatmulArgs& args) {
  for (size_t t = 0; t < args.tokens; ++t) {
    const Row x = activation_row(args, kForm, t);
    for (size_t r = 0; r < args.rows; ++r) {
      args.out[t * args.out_stride + r] = kDot(args.row(r), x, args.n);
    }
  }
}

template <auto kUnpack, size_t kBytes, bool kHasMin = false>
constexpr MatmulFn kSmall = matmul_int<dot_small<kUnpack, kBytes, kHasMin>, ActivationForm::kQ8Block32>;
template <auto kUnpack, size_t kBytes, bool kHasMin = false>
constexpr MatmulFn kSuper = matmul_int<dot_super<kUnpack, kBytes, kHasMin>, ActivationForm::kQ8Block256>;

/// Elements dequantised at once: a multiple of every block and of the 16 lanes.
constexpr size_t kChunk = 256;
constexpr size_t kTokenTile = 16;

template <TensorType kType>
void matmul_float(const MatmulArgs& args) {
  const size_t slot = static_cast<size_t>(kType);
  const DequantizeFn dequantize =
      reference_dequantize()[slot] ? reference_dequantize()[slot] : reference_dequantize_iq()[slot];
  const base::TensorTypeInfo& info = base::tensor_type_info(kType);
  const size_t chunk_bytes = kChunk / info.block_elems * info.block_bytes;
  for (size_t r = 0; r < args.rows; ++r) {
    for (size_t t0 = 0; t0 < args.tokens; t0 += kTokenTile) {
      const size_t tile = args.tokens - t0 < kTokenTile ? args.tokens - t0 : kTokenTile;
      float acc[kTokenTile][16] = {};
      const uint8_t* weights = args.row(r);
      for (size_t begin = 0; begin < args.n; begin += kChunk, weights += chunk_bytes) {
        const size_t count = args.n - begin < kChunk ? args.n - begin : kChunk;
        float w[kChunk];
        dequantize(weights, count, w);
        for (size_t t = 0; t < tile; ++t) {
          const float* x = reinterpret_cast<const float*>(args.x + (t0 + t) * args.x_stride) + begin;
          for (size_t i = 0; i < count; ++i) acc[t][i % 16] = std::fmaf(w[i], x[i], acc[t][i % 16]);
        }
      }
      for (size_t t = 0; t < tile; ++t) args.out[(t0 + t) * args.out_stride + r] = tree_sum(acc[t], 16);
    }
  }
}

struct Table {
  MatmulFn of[kTypeSlots];
};

template <TensorType... kTypes>
constexpr void set_float(Table* table) {
  ((table->of[static_cast<size_t>(kTypes)] = matmul_float<kTypes>), ...);
}

constexpr Table make_table() {
  using T = TensorType;
  Table table{};
  const auto set = [&](TensorType type, MatmulFn fn) { table.of[static_cast<size_t>(type)] = fn; };
  set_float<T::kF32, T::kF16, T::kBF16, T::kIQ1_S, T::kIQ1_M, T::kIQ2_XXS, T::kIQ2_XS, T::kIQ2_S, T::kIQ3_XXS,
            T::kIQ3_S, T::kTQ1_0, T::kTQ2_0, T::kNVFP4>(&table);
  set(T::kQ4_0, kSmall<unpack_q4_0, 18>);
  set(T::kQ4_1, kSmall<unpack_q4_1, 20, true>);
  set(T::kQ5_0, kSmall<unpack_q5_0, 22>);
  set(T::kQ5_1, kSmall<unpack_q5_1, 24, true>);
  set(T::kQ8_0, kSmall<unpack_q8_0, 34>);
  set(T::kIQ4_NL, kSmall<unpack_iq4_nl, 18>);
  set(T::kMXFP4, kSmall<unpack_mxfp4, 17>);
  set(T::kQ2_K, kSuper<unpack_q2_k, 84, true>);
  set(T::kQ3_K, kSuper<unpack_q3_k, 110>);
  set(T::kQ4_K, kSuper<unpack_q4_k, 144, true>);
  set(T::kQ5_K, kSuper<unpack_q5_k, 176, true>);
  set(T::kQ6_K, kSuper<unpack_q6_k, 210>);
  set(T::kIQ4_XS, kSuper<unpack_iq4_xs, 136>);
  return table;
}

constexpr Table kTable = make_table();

}  // namespace

const MatmulFn* reference_matmul() {
  return kTable.of;
}

}  // namespace ganglion::kernels

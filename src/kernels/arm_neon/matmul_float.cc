// NEON products of F32, F16 and BF16 weights with float activations: 16 lanes as four vectors.
// Same bits as reference/matmul.cc.
#include "kernels/arm_neon/common.h"

namespace ganglion::kernels {
namespace {

struct F32 {
  static constexpr size_t kBytes = 4;
  GANGLION_INLINE float32x4_t load_4(const uint8_t* row, size_t i) {
    return vreinterpretq_f32_u8(load_u8(row + 4 * i));
  }
  GANGLION_INLINE float load(const uint8_t* row, size_t i) { return load_f32(row + 4 * i); }
};

struct F16 {
  static constexpr size_t kBytes = 2;
  GANGLION_INLINE float32x4_t load_4(const uint8_t* row, size_t i) {
    return from_halves(vreinterpret_u16_u8(vld1_u8(row + 2 * i)));
  }
  GANGLION_INLINE float load(const uint8_t* row, size_t i) { return half_scalar(row + 2 * i); }
};

struct BF16 {
  static constexpr size_t kBytes = 2;
  GANGLION_INLINE float32x4_t load_4(const uint8_t* row, size_t i) {
    return vreinterpretq_f32_u32(vshll_n_u16(vreinterpret_u16_u8(vld1_u8(row + 2 * i)), 16));
  }
  GANGLION_INLINE float load(const uint8_t* row, size_t i) {
    const uint32_t bits = static_cast<uint32_t>(load_u16(row + 2 * i)) << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
  }
};

/// The last n % 16 elements, each in its lane, then the tree.
template <class Type>
GANGLION_INLINE float finish(const uint8_t* row, const float* x, size_t begin, size_t n,
                             const float32x4_t* acc) {
  if (begin == n) return tree_16(acc);
  float lanes[16];
  for (size_t k = 0; k < 4; ++k) vst1q_f32(lanes + 4 * k, acc[k]);
  for (size_t i = begin; i < n; ++i) {
    lanes[i - begin] = __builtin_fmaf(Type::load(row, i), x[i], lanes[i - begin]);
  }
  float32x4_t v[4];
  for (size_t k = 0; k < 4; ++k) v[k] = vld1q_f32(lanes + 4 * k);
  return tree_16(v);
}

/// R rows times T tokens: R * T chains of four vectors each, which stay in registers.
template <class Type, size_t R, size_t T>
GANGLION_INLINE void tile(const MatmulArgs& args, size_t r0, size_t t0) {
  const uint8_t* rows[R];
  const float* x[T];
  float32x4_t acc[R][T][4];
  const uint8_t* ahead[R];
  for (size_t r = 0; r < R; ++r) {
    rows[r] = args.row(r0 + r);
    ahead[r] = ahead_of(args, r0 + r, T);
  }
  for (size_t t = 0; t < T; ++t) {
    x[t] = reinterpret_cast<const float*>(args.x + (t0 + t) * args.x_stride);
    for (size_t r = 0; r < R; ++r) {
      for (size_t k = 0; k < 4; ++k) acc[r][t][k] = vdupq_n_f32(0);
    }
  }
  size_t i = 0;
  for (; i + 16 <= args.n; i += 16) {
    for (size_t r = 0; r < R; ++r) {
      if (ahead[r] != nullptr) prefetch<16 * Type::kBytes>(ahead[r] + i * Type::kBytes);
    }
    for (size_t k = 0; k < 4; ++k) {
      float32x4_t w[R];
      for (size_t r = 0; r < R; ++r) w[r] = Type::load_4(rows[r], i + 4 * k);
      for (size_t t = 0; t < T; ++t) {
        const float32x4_t v = vld1q_f32(x[t] + i + 4 * k);
        for (size_t r = 0; r < R; ++r) acc[r][t][k] = vfmaq_f32(acc[r][t][k], w[r], v);
      }
    }
  }
  for (size_t t = 0; t < T; ++t) {
    for (size_t r = 0; r < R; ++r) {
      args.out[(t0 + t) * args.out_stride + r0 + r] = finish<Type>(rows[r], x[t], i, args.n, acc[r][t]);
    }
  }
}

template <class Type, size_t T>
void tiles_of_rows(const MatmulArgs& args, size_t r0, size_t r1, size_t t0) {
  size_t r = r0;
  for (; r + 2 <= r1; r += 2) tile<Type, 2, T>(args, r, t0);
  if (r < r1) tile<Type, 1, T>(args, r, t0);
}

template <class Type>
void matmul(const MatmulArgs& args) {
  for (size_t r0 = 0; r0 < args.rows; r0 += kRowsAtOnce) {
    const size_t r1 = args.rows - r0 < kRowsAtOnce ? args.rows : r0 + kRowsAtOnce;
    size_t t = 0;
    for (; t + 3 <= args.tokens; t += 3) tiles_of_rows<Type, 3>(args, r0, r1, t);
    if (args.tokens - t == 2) tiles_of_rows<Type, 2>(args, r0, r1, t);
    if (args.tokens - t == 1) tiles_of_rows<Type, 1>(args, r0, r1, t);
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

const MatmulFn* neon_matmul_float() {
  return kTable.of;
}

}  // namespace ganglion::kernels

// NEON kernels of the KV cache. Same bits as reference/kv.cc. F32 and F16 rows take any n, Q8_0 rows a
// multiple of 32.
#include "kernels/arm_neon/common.h"
#include "kernels/arm_neon/quantize.h"

namespace ganglion::kernels {
namespace {

/// 16 elements of a row, from a multiple of 16 on.
struct Sixteen {
  float32x4_t v[4];
};

struct F32 {
  GANGLION_INLINE Sixteen load_16(const uint8_t* row, size_t i) {
    const uint8_t* p = row + 4 * i;
    return {{vreinterpretq_f32_u8(load_u8(p)), vreinterpretq_f32_u8(load_u8(p + 16)),
             vreinterpretq_f32_u8(load_u8(p + 32)), vreinterpretq_f32_u8(load_u8(p + 48))}};
  }
  GANGLION_INLINE float load(const uint8_t* row, size_t i) { return load_f32(row + 4 * i); }
};

struct F16 {
  GANGLION_INLINE Sixteen load_16(const uint8_t* row, size_t i) {
    const uint16x8_t first = vreinterpretq_u16_u8(load_u8(row + 2 * i));
    const uint16x8_t second = vreinterpretq_u16_u8(load_u8(row + 2 * i + 16));
    return {{from_halves(vget_low_u16(first)), from_halves(vget_high_u16(first)),
             from_halves(vget_low_u16(second)), from_halves(vget_high_u16(second))}};
  }
  GANGLION_INLINE float load(const uint8_t* row, size_t i) { return half_scalar(row + 2 * i); }
};

struct Q8_0 {
  GANGLION_INLINE Sixteen load_16(const uint8_t* row, size_t i) {
    const uint8_t* block = row + 34 * (i / 32);
    const float scale = half_scalar(block);
    const int8x16_t q = load_s8(block + 2 + i % 32);
    const int16x8_t low = vmovl_s8(vget_low_s8(q)), high = vmovl_high_s8(q);
    return {{vmulq_n_f32(vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))), scale),
             vmulq_n_f32(vcvtq_f32_s32(vmovl_high_s16(low)), scale),
             vmulq_n_f32(vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))), scale),
             vmulq_n_f32(vcvtq_f32_s32(vmovl_high_s16(high)), scale)}};
  }
  GANGLION_INLINE float load(const uint8_t* row, size_t i) {
    const uint8_t* block = row + 34 * (i / 32);
    return half_scalar(block) * static_cast<float>(static_cast<int8_t>(block[2 + i % 32]));
  }
};

template <class Type>
void kv_dot(const float* q, const uint8_t* k, size_t stride, size_t count, size_t n, float* scores) {
  for (size_t j = 0; j < count; ++j, k += stride) {
    float32x4_t acc[4];
    for (size_t part = 0; part < 4; ++part) acc[part] = vdupq_n_f32(0);
    size_t i = 0;
    for (; i + 16 <= n; i += 16) {
      const Sixteen row = Type::load_16(k, i);
      for (size_t part = 0; part < 4; ++part) {
        acc[part] = vfmaq_f32(acc[part], row.v[part], vld1q_f32(q + i + 4 * part));
      }
    }
    if (i < n) {
      float lanes[16];
      for (size_t part = 0; part < 4; ++part) vst1q_f32(lanes + 4 * part, acc[part]);
      for (size_t e = i; e < n; ++e) lanes[e - i] = __builtin_fmaf(Type::load(k, e), q[e], lanes[e - i]);
      for (size_t part = 0; part < 4; ++part) acc[part] = vld1q_f32(lanes + 4 * part);
    }
    scores[j] = tree_16(acc);
  }
}

/// 16 * S elements of `out` stay in registers while all rows pass.
template <class Type, size_t S>
GANGLION_INLINE void axpy_columns(const float* w, const uint8_t* v, size_t stride, size_t count, size_t i,
                                  float* out) {
  float32x4_t acc[S][4];
  for (size_t s = 0; s < S; ++s) {
    for (size_t k = 0; k < 4; ++k) acc[s][k] = vld1q_f32(out + i + 16 * s + 4 * k);
  }
  for (size_t j = 0; j < count; ++j, v += stride) {
    for (size_t s = 0; s < S; ++s) {
      const Sixteen row = Type::load_16(v, i + 16 * s);
      for (size_t k = 0; k < 4; ++k) acc[s][k] = vfmaq_n_f32(acc[s][k], row.v[k], w[j]);
    }
  }
  for (size_t s = 0; s < S; ++s) {
    for (size_t k = 0; k < 4; ++k) vst1q_f32(out + i + 16 * s + 4 * k, acc[s][k]);
  }
}

template <class Type>
void kv_axpy(const float* w, const uint8_t* v, size_t stride, size_t count, size_t n, float* out) {
  size_t i = 0;
  for (; i + 64 <= n; i += 64) axpy_columns<Type, 4>(w, v, stride, count, i, out);
  for (; i + 16 <= n; i += 16) axpy_columns<Type, 1>(w, v, stride, count, i, out);
  for (; i < n; ++i) {
    for (size_t j = 0; j < count; ++j) out[i] = __builtin_fmaf(w[j], Type::load(v + j * stride, i), out[i]);
  }
}

void store_f32(const float* x, size_t n, uint8_t* row) {
  memcpy(row, x, n * sizeof(float));
}

void store_half(float x, uint8_t* to) {
  const uint16_t half = vget_lane_u16(to_halves(vdupq_n_f32(x)), 0);
  memcpy(to, &half, sizeof half);
}

void store_f16(const float* x, size_t n, uint8_t* row) {
  size_t i = 0;
  for (; i + 4 <= n; i += 4) vst1_u8(row + 2 * i, vreinterpret_u8_u16(to_halves(vld1q_f32(x + i))));
  for (; i < n; ++i) store_half(x[i], row + 2 * i);
}

void store_q8_0(const float* x, size_t n, uint8_t* row) {
  for (size_t b = 0; b < n / 32; ++b, row += 34) {
    store_half(quantize_block<32>(x + 32 * b, reinterpret_cast<int8_t*>(row + 2)), row);
  }
}

}  // namespace

void neon_set_kv(KernelTable* table) {
  const auto set = [&](KvType type, KvDotFn dot, KvAxpyFn axpy, KvStoreFn store) {
    table->kv_dot[static_cast<size_t>(type)] = dot;
    table->kv_axpy[static_cast<size_t>(type)] = axpy;
    table->kv_store[static_cast<size_t>(type)] = store;
  };
  set(KvType::kF32, kv_dot<F32>, kv_axpy<F32>, store_f32);
  set(KvType::kF16, kv_dot<F16>, kv_axpy<F16>, store_f16);
  set(KvType::kQ8_0, kv_dot<Q8_0>, kv_axpy<Q8_0>, store_q8_0);
}

}  // namespace ganglion::kernels

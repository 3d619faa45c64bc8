#include "accelerator/opencl_source.h"

namespace ganglion::accelerator {
namespace {

// Rows lie at multiples of 2 bytes; nothing wider is assumed. Offsets of rows are in bytes, of vectors in
// floats.
constexpr char kSource[] = R"cl(
typedef __global const uchar* Bytes;
typedef __global const float* Floats;

ushort u16(Bytes at) { return *(__global const ushort*)at; }
ushort8 u16x8(Bytes at) { return vload8(0, (__global const ushort*)at); }

// Half precision to float by integer arithmetic: exact, subnormal numbers included.
float8 halves(ushort8 bits) {
  const uint8 h = convert_uint8(bits);
  const uint8 size = h & 0x7fffu;
  const uint8 shift = select((uint8)(0x70000000u), (uint8)(0x38000000u), size < 0x7c00u);
  const uint8 small = as_uint8(convert_float8(size) * 5.9604644775390625e-8f);
  return as_float8(((h & 0x8000u) << 16) | select((size << 13) + shift, small, size < 0x400u));
}
float half_at(Bytes at) {
  const uint h = u16(at);
  const uint size = h & 0x7fffu;
  const uint small = as_uint((float)size * 5.9604644775390625e-8f);
  const uint normal = (size << 13) + (size < 0x7c00u ? 0x38000000u : 0x70000000u);
  return as_float(((h & 0x8000u) << 16) | (size < 0x400u ? small : normal));
}
float8 nibbles(uchar8 q, float scale, float minimum) { return convert_float8(q) * scale - minimum; }

// unit(row, u, w): elements [32 u, 32 u + 32) of a row of weights.
#if defined(WEIGHTS_Q4_0)
void unit(Bytes row, uint u, float8* w) {
  const Bytes at = row + u * 18;
  const float scale = half_at(at);
  const uchar16 q = as_uchar16(u16x8(at + 2));
  const uchar16 low = q & (uchar)15, high = q >> (uchar)4;
  w[0] = nibbles(low.lo, scale, 8 * scale);
  w[1] = nibbles(low.hi, scale, 8 * scale);
  w[2] = nibbles(high.lo, scale, 8 * scale);
  w[3] = nibbles(high.hi, scale, 8 * scale);
}
#elif defined(WEIGHTS_Q8_0)
void unit(Bytes row, uint u, float8* w) {
  const Bytes at = row + u * 34;
  const float scale = half_at(at);
  const char16 low = as_char16(u16x8(at + 2)), high = as_char16(u16x8(at + 18));
  w[0] = convert_float8(low.lo) * scale;
  w[1] = convert_float8(low.hi) * scale;
  w[2] = convert_float8(high.lo) * scale;
  w[3] = convert_float8(high.hi) * scale;
}
#elif defined(WEIGHTS_Q4_K)
// Super-blocks of 256: two halves, 12 bytes of 6-bit scales and minima, 128 bytes of codes.
void unit(Bytes row, uint u, float8* w) {
  const Bytes at = row + (u / 8) * 144;
  const uint s = u % 8;
  const Bytes packed = at + 4;
  uint scale_code, minimum_code;
  if (s < 4) {
    scale_code = packed[s] & 63;
    minimum_code = packed[s + 4] & 63;
  } else {
    scale_code = (packed[s + 4] & 15) | ((packed[s - 4] >> 6) << 4);
    minimum_code = (packed[s + 4] >> 4) | ((packed[s] >> 6) << 4);
  }
  const float scale = half_at(at) * (float)scale_code, minimum = half_at(at + 2) * (float)minimum_code;
  const uchar shift = (uchar)(4 * (s % 2));
  const Bytes codes = at + 16 + (s / 2) * 32;
  const uchar16 low = (as_uchar16(u16x8(codes)) >> shift) & (uchar)15;
  const uchar16 high = (as_uchar16(u16x8(codes + 16)) >> shift) & (uchar)15;
  w[0] = nibbles(low.lo, scale, minimum);
  w[1] = nibbles(low.hi, scale, minimum);
  w[2] = nibbles(high.lo, scale, minimum);
  w[3] = nibbles(high.hi, scale, minimum);
}
#elif defined(WEIGHTS_F16)
void unit(Bytes row, uint u, float8* w) {
  for (uint i = 0; i < 4; ++i) w[i] = halves(u16x8(row + u * 64 + i * 16));
}
#elif defined(WEIGHTS_F32)
void unit(Bytes row, uint u, float8* w) {
  for (uint i = 0; i < 4; ++i) {
    const Bytes at = row + u * 128 + i * 32;
    w[i] = as_float8((ushort16)(u16x8(at), u16x8(at + 16)));
  }
}
#endif

// down8(row, e): elements [e, e + 8) of a transposed down row; e is a multiple of 8.
#if defined(DOWN_q4)
float8 down8(Bytes row, uint e) {
  const Bytes at = row + (e / 32) * 18;
  const float scale = half_at(at);
  const uchar8 q = as_uchar8(vload4(0, (__global const ushort*)(at + 2 + e % 16)));
  return nibbles((q >> (uchar)(e % 32 < 16 ? 0 : 4)) & (uchar)15, scale, 8 * scale);
}
#elif defined(DOWN_q6)
float8 down8(Bytes row, uint e) {
  const Bytes at = row + (e / 32) * 26;
  const float scale = half_at(at);
  const uchar8 q = as_uchar8(vload4(0, (__global const ushort*)(at + 2 + e % 16)));
  const uchar8 top = as_uchar8(vload4(0, (__global const ushort*)(at + 18)));
  const uchar8 high = (top >> (uchar)(e % 32 / 4)) & (uchar)3;
  const uchar8 low = (q >> (uchar)(e % 32 < 16 ? 0 : 4)) & (uchar)15;
  return nibbles(low | (high << (uchar)4), scale, 32 * scale);
}
#elif defined(DOWN_q8)
float8 down8(Bytes row, uint e) {
  const Bytes at = row + (e / 32) * 34;
  const char8 q = as_char8(vload4(0, (__global const ushort*)(at + 2 + e % 32)));
  return convert_float8(q) * half_at(at);
}
#elif defined(DOWN_f16)
float8 down8(Bytes row, uint e) { return halves(u16x8(row + e * 2)); }
#elif defined(DOWN_f32)
float8 down8(Bytes row, uint e) {
  return as_float8((ushort16)(u16x8(row + e * 4), u16x8(row + e * 4 + 16)));
}
#endif

#if defined(PART_HIDDEN)
// parts [BUCKET][LANES + 1]: in the first BUCKET work-items, the sum of their token's lanes is row * x [dim].
float multiply(Bytes row, Floats x, uint dim, __local float* parts) {
  const uint lane = get_local_id(0);
  float8 sums[BUCKET];
  for (uint t = 0; t < BUCKET; ++t) sums[t] = (float8)(0.0f);
  for (uint u = lane; u < dim / 32; u += LANES) {
    float8 w[4];
    unit(row, u, w);
    for (uint t = 0; t < BUCKET; ++t) {
      const Floats at = x + (size_t)t * dim + u * 32;
      sums[t] += w[0] * vload8(0, at) + w[1] * vload8(1, at) + w[2] * vload8(2, at) + w[3] * vload8(3, at);
    }
  }
  for (uint t = 0; t < BUCKET; ++t) {
    const float4 four = sums[t].lo + sums[t].hi;
    parts[t * (LANES + 1) + lane] = four.x + four.z + (four.y + four.w);
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  float sum = 0;
  if (lane < BUCKET) {
    for (uint i = 0; i < LANES; ++i) sum += parts[lane * (LANES + 1) + i];
  }
  return sum;
}

// values [BUCKET][neurons]: act(gate) * up of neuron `first` + the group's number, 0 where the gate is
// closed.
// Ups are read where a gate of any token is open.
__kernel __attribute__((reqd_work_group_size(LANES, 1, 1))) void ffn_hidden(
    Floats x, ulong x_at, Bytes gates, ulong gate_at, uint gate_stride, Bytes ups, ulong up_at,
    uint up_stride, uint dim, int activation, float threshold, __global float* values, uint first,
    uint neurons) {
  __local float parts[BUCKET * (LANES + 1)];
  __local int opens[BUCKET];
  const uint lane = get_local_id(0);
  const size_t n = get_group_id(0);
  x += x_at;
  const float gate = multiply(gates + gate_at + n * gate_stride, x, dim, parts);
  const float act = activation == ACTIVATION_SILU ? gate / (1.0f + exp(-gate)) : gate;
  const int open = activation == ACTIVATION_SILU ? !(fabs(act) <= threshold) : act > threshold;
  if (lane < BUCKET) opens[lane] = open;
  barrier(CLK_LOCAL_MEM_FENCE);
  int any = 0;
  for (uint t = 0; t < BUCKET; ++t) any |= opens[t];
  float up = 0;
  if (any) up = multiply(ups + up_at + n * up_stride, x, dim, parts);
  if (activation == ACTIVATION_DRELU) up = fmax(up, 0.0f);
  if (lane < BUCKET) values[lane * neurons + first + n] = open ? act * up : 0.0f;
}
#endif

#if defined(PART_DOWN)
// partials [slices][BUCKET][dim]: each the sum over SLICE neurons of value * down row, ascending.
__kernel __attribute__((reqd_work_group_size(DOWN_ITEMS, 1, 1))) void ffn_down(
    Bytes downs, ulong down_at, uint down_stride, Floats values, uint first, uint count, uint neurons,
    uint dim, __global float* partials, uint first_slice) {
  const uint e = 8 * (uint)get_global_id(0);
  const uint slice = (uint)get_group_id(1);
  if (e >= dim) return;
  float8 sums[BUCKET];
  for (uint t = 0; t < BUCKET; ++t) sums[t] = (float8)(0.0f);
  const uint end = min(count, (slice + 1) * SLICE);
  for (uint n = slice * SLICE; n < end; ++n) {
    float value[BUCKET];
    int any = 0;
    for (uint t = 0; t < BUCKET; ++t) {
      value[t] = values[t * neurons + first + n];
      any |= value[t] != 0.0f;
    }
    if (any) {
      const float8 w = down8(downs + down_at + (size_t)n * down_stride, e);
      for (uint t = 0; t < BUCKET; ++t) sums[t] += w * value[t];
    }
  }
  for (uint t = 0; t < BUCKET; ++t) {
    vstore8(sums[t], 0, partials + ((size_t)(first_slice + slice) * BUCKET + t) * dim + e);
  }
}
#endif

#if defined(PART_SUM)
// out [count] = the sum of the partials [slices][count], ascending.
__kernel __attribute__((reqd_work_group_size(SUM_ITEMS, 1, 1))) void ffn_sum(
    __global float* out, ulong out_at, Floats partials, uint slices, uint count) {
  const size_t i = get_global_id(0);
  float sum = 0;
  for (uint s = 0; s < slices; ++s) sum += partials[(size_t)s * count + i];
  out[out_at + i] = sum;
}
#endif

#if defined(PART_MATMUL)
// out [tokens][rows] = x [tokens][cols] * weights [rows][cols]^T. A group makes a tile of TILE_ROWS x
// TILE_TOKENS, a work-item 8 rows x 4 tokens of it; a step takes 32 columns through local memory. Each
// work-item decodes one row of the step.
__kernel __attribute__((reqd_work_group_size(TILE_ROWS, 1, 1))) void matmul(
    Floats x, ulong x_at, __global float* out, ulong out_at, Bytes weights, ulong weights_at, uint row_bytes,
    uint rows, uint cols) {
  __local float w_tile[32 * TILE_ROWS];
  __local float x_tile[TILE_TOKENS * 33];
  const uint item = get_local_id(0);
  const uint first_row = (uint)get_group_id(0) * TILE_ROWS, first_token = (uint)get_group_id(1) * TILE_TOKENS;
  const uint row_group = item % 8, token = item / 8;
  const int there = first_row + item < rows;
  const Bytes row = weights + weights_at + (size_t)(there ? first_row + item : 0) * row_bytes;
  const uint x_token = item / 2, x_half = item % 2 * 16;
  const Floats x_row = x + x_at + (size_t)(first_token + x_token) * cols + x_half;
  float8 sums[4];
  for (uint i = 0; i < 4; ++i) sums[i] = (float8)(0.0f);
  for (uint u = 0; u < cols / 32; ++u) {
    float8 w[4];
    unit(row, u, w);
    for (uint i = 0; i < 4; ++i) {
      float plain[8];
      vstore8(w[i], 0, plain);
      for (uint k = 0; k < 8; ++k) w_tile[(8 * i + k) * TILE_ROWS + item] = plain[k];
    }
    vstore16(vload16(0, x_row + u * 32), 0, x_tile + x_token * 33 + x_half);
    barrier(CLK_LOCAL_MEM_FENCE);
    for (uint k = 0; k < 32; ++k) {
      const float8 eight = vload8(0, w_tile + k * TILE_ROWS + 8 * row_group);
      for (uint i = 0; i < 4; ++i) sums[i] += eight * x_tile[(token + 8 * i) * 33 + k];
    }
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  const uint r = first_row + 8 * row_group;
  for (uint i = 0; i < 4; ++i) {
    __global float* to = out + out_at + (size_t)(first_token + token + 8 * i) * rows + r;
    if (r + 8 <= rows) {
      vstore8(sums[i], 0, to);
    } else {
      float plain[8];
      vstore8(sums[i], 0, plain);
      for (uint k = 0; r + k < rows; ++k) to[k] = plain[k];
    }
  }
}
#endif
)cl";

}  // namespace

const char* opencl_source() {
  return kSource;
}

}  // namespace ganglion::accelerator

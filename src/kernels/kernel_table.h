// The contract of every kernel: a table of function pointers per instruction set, tested against reference/.
//
// Arithmetic contract. Every table computes an output element by the same sequence, so that results do not
// depend on the number of rows, tokens, threads or on where a row came from - nor on the table:
//   integer types  exact int32 sum per block (per super-block of 256 for K types, sub-scales included), then
//                  acc[b % 8] = fma(weight_scale * activation_scale, float(sum), acc[b % 8]) in block order;
//                  a minimum adds a second fma. The eight lanes are added as a tree: i with i+4, i+2, i+1.
//   float types    acc[i % 16] = fma(w_i, x_i, acc[i % 16]); the tree adds i with i+8, i+4, i+2, i+1.
// Pointers in and out, no allocation, no state: all functions may run on any thread at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "base/tensor_type.h"

namespace ganglion::kernels {

using base::TensorType;

/// How activations are stored for a product with a weight type. The form depends on the type alone.
enum class ActivationForm : uint8_t {
  kF32,         ///< n floats.
  kQ8Block32,   ///< n int8, then n/32 float scales, then n/32 int16 sums of the int8 values of a block.
  kQ8Block256,  ///< n int8, then n/256 float scales, then n/16 int16 sums of groups of 16.
};
// scale = max|x| / 127 over the block, q = round-to-nearest-even(x / scale) computed as x * (127 / max|x|);
// a block of zeros (max|x| < 2^-100, where 127 / max|x| could overflow) has q = 0 and scale 0; one with a NaN
// or an infinity has q = 0 and scale NaN, so that it shows in the product. Each part starts on a multiple of
// 64 bytes; the bytes between parts are 0.

ActivationForm activation_form(TensorType weight_type);

/// Bytes of one row of `n` activations, a multiple of 64. n is a multiple of 32 (256) for the integer forms.
size_t activation_row_bytes(ActivationForm form, size_t n);
/// Offsets of scales and sums in such a row.
size_t activation_scales_offset(size_t n);
size_t activation_sums_offset(ActivationForm form, size_t n);

/// out[t * out_stride + r] = sum_i weights[r][i] * x[t][i]
/// Shapes:   weights [rows, n] in blocks, rows `weight_stride` bytes apart, of any alignment;
///           x: `tokens` rows of activation_form(type), `x_stride` bytes apart, 64-byte aligned, as written
///           by store_activation; out [tokens, out_stride] f32. Where `scattered` is not null, it says where
///           each row is, in place of weights and weight_stride.
/// Requires: n is a multiple of the type's block; any n for F32, F16 and BF16.
/// Cost:     rows are taken for a part of a longer run of rows and fetched ahead; of scattered ones, those
///           that come a little later in the same call, and `more` entries behind them, which the caller will
///           use next (at least one row).
struct MatmulArgs {
  const uint8_t* weights;
  size_t weight_stride;
  size_t rows;
  size_t n;
  const uint8_t* x;
  size_t x_stride;
  size_t tokens;
  float* out;
  size_t out_stride;
  const uint8_t* const* scattered = nullptr;
  size_t more = 0;

  [[gnu::always_inline]] const uint8_t* row(size_t r) const {
    return scattered ? scattered[r] : weights + r * weight_stride;
  }
};
using MatmulFn = void (*)(const MatmulArgs&);

/// out[0, n) = the values of one row. Exactly those of the type's definition.
using DequantizeFn = void (*)(const uint8_t* row, size_t n, float* out);

/// Element types a KV cache can have.
enum class KvType : uint8_t { kF32, kF16, kQ8_0 };
inline constexpr size_t kKvTypes = 3;
/// As options name them, by type: "f32", "f16", "q8_0".
std::span<const std::string_view, kKvTypes> kv_type_names();
std::optional<KvType> kv_type_named(std::string_view name);

/// scores[j] = sum_i q[i] * k[j][i] in the 16-lane order; rows `stride` bytes apart; n % 32 == 0 for Q8_0.
using KvDotFn = void (*)(const float* q, const uint8_t* k, size_t stride, size_t count, size_t n,
                         float* scores);
/// out[i] = fma(w[j], v[j][i], out[i]) for j ascending.
using KvAxpyFn = void (*)(const float* w, const uint8_t* v, size_t stride, size_t count, size_t n,
                          float* out);
/// Stores one row of n floats as a KV row. Q8_0 rounds as activations do, see above, and its scale to half.
using KvStoreFn = void (*)(const float* x, size_t n, uint8_t* row);

/// Gated activations of an FFN.
enum class Activation : uint8_t { kSilu, kGeluTanh, kRelu, kDRelu, kSwigluOai };
inline constexpr size_t kActivations = 5;

/// How a transposed row of a down matrix is stored in a pack's bundles: blocks of 32 with a half-precision
/// scale and 4, 6 or 8 bit codes, or plain. Layouts: docs/pack_format.md.
enum class DownType : uint8_t { kQ4, kQ6, kQ8, kF16, kF32 };
inline constexpr size_t kDownTypes = 5;

/// As files and options name them, by type: "q4", "q6", "q8", "f16", "f32".
std::span<const std::string_view, kDownTypes> down_type_names();
/// Bytes of a row of n elements; n is a multiple of 32.
size_t down_row_bytes(DownType type, size_t n);
/// Rounds a row to the nearest codes; a block's largest element decides its scale.
void quantize_down_row(DownType type, const float* x, size_t n, uint8_t* row);

/// out[i] = fma(weights[j] * scale, code of rows[j][begin + i], out[i]) for j ascending, i in [0, n); the
/// scale is that of the element's block, 1 for the plain types. begin and n are multiples of 32. `rows` has
/// `more` entries behind the last that are fetched as well, which the caller will use next.
struct DownArgs {
  const float* weights;
  const uint8_t* const* rows;
  size_t count;
  size_t begin;
  size_t n;
  float* out;
  size_t more = 0;
};
using DownAxpyFn = void (*)(const DownArgs&);

inline constexpr size_t kTypeSlots = 41;

struct KernelTable {
  const char* name;
  MatmulFn matmul[kTypeSlots];          ///< By type number; null where a type is not computable.
  DequantizeFn dequantize[kTypeSlots];  ///< By type number; null likewise.
  /// Writes `x` [n] in the given form (kF32 copies).
  void (*store_activation)(ActivationForm form, const float* x, size_t n, uint8_t* row);
  KvDotFn kv_dot[kKvTypes];
  KvAxpyFn kv_axpy[kKvTypes];
  KvStoreFn kv_store[kKvTypes];
  DownAxpyFn down_axpy[kDownTypes];

  /// out[i] = x[i] * weight[i] / sqrt(mean(x^2) + eps), computed as (x * float(1 / sqrt(..))) * weight; the
  /// mean over n in the 16-lane order, in double lanes. weight may be null (all ones). out may be x.
  void (*rms_norm)(const float* x, const float* weight, size_t n, float eps, float* out);
  /// In place: x[i] = exp(x[i] - max_value), returns the sum in the 16-lane order. |error| <= 2 ulp of exp.
  float (*exp_sum)(float* x, size_t n, float max_value);
  /// gate[i] = act(gate[i]) * up[i] (kDRelu: relu on both). GELU is the tanh form in float32. kSwigluOai:
  /// gate clamped to at most 7, up to [-7, 7], then gate * sigmoid(1.702 gate) * (up + 1). |error| <= 4 *
  /// 2^-23 * |gate * up|, for kSwigluOai of |gate| * (|up| + 1) after clamping.
  void (*gated_activation[kActivations])(float* gate, const float* up, size_t n);
  /// out[i] += scale * x[i], as fma.
  void (*add_scaled)(const float* x, float scale, size_t n, float* out);
};

/// Scalar, slow, and right: what the others are compared with.
const KernelTable& reference_table();

/// Tables that this build and this processor have, best first; the last is reference_table().
std::span<const KernelTable* const> available_tables();

/// The table named (`GANGLION_ISA`), or the best one if `name` is empty; null if there is none of that name.
const KernelTable* select_table(std::string_view name);

/// Compares `table` with the reference on pseudo-random blocks of every type (a few milliseconds).
/// Returns the name of the first kernel that differs, or an empty view.
std::string_view self_test(const KernelTable& table);

}  // namespace ganglion::kernels

// Compares a table with the reference at start. Control plane: allocates a few hundred KiB and frees them.
#include <cstring>
#include <vector>

#include "base/units.h"
#include "kernels/kernel_table.h"
#include "kernels/random_blocks.h"

namespace ganglion::kernels {
namespace {

/// Rows, columns and tokens of the trial product: tails of every tile and of the eight lanes.
constexpr size_t kRows = 3;
constexpr size_t kColumns = 2304;
constexpr size_t kTokens = 5;
constexpr size_t kKvRows = 5;
constexpr size_t kKvColumns = 160;
/// Length of the vector operations: no multiple of any vector.
constexpr size_t kLength = 333;

struct TypeNames {
  TensorType type;
  std::string_view matmul;
  std::string_view dequantize;
};

#define GANGLION_TYPE_NAMES(type) \
  { TensorType::k##type, "matmul " #type, "dequantize " #type }
constexpr TypeNames kTypeNames[] = {
    GANGLION_TYPE_NAMES(F32),     GANGLION_TYPE_NAMES(F16),     GANGLION_TYPE_NAMES(BF16),
    GANGLION_TYPE_NAMES(Q4_0),    GANGLION_TYPE_NAMES(Q4_1),    GANGLION_TYPE_NAMES(Q5_0),
    GANGLION_TYPE_NAMES(Q5_1),    GANGLION_TYPE_NAMES(Q8_0),    GANGLION_TYPE_NAMES(Q2_K),
    GANGLION_TYPE_NAMES(Q3_K),    GANGLION_TYPE_NAMES(Q4_K),    GANGLION_TYPE_NAMES(Q5_K),
    GANGLION_TYPE_NAMES(Q6_K),    GANGLION_TYPE_NAMES(IQ2_XXS), GANGLION_TYPE_NAMES(IQ2_XS),
    GANGLION_TYPE_NAMES(IQ3_XXS), GANGLION_TYPE_NAMES(IQ1_S),   GANGLION_TYPE_NAMES(IQ4_NL),
    GANGLION_TYPE_NAMES(IQ3_S),   GANGLION_TYPE_NAMES(IQ2_S),   GANGLION_TYPE_NAMES(IQ4_XS),
    GANGLION_TYPE_NAMES(IQ1_M),   GANGLION_TYPE_NAMES(TQ1_0),   GANGLION_TYPE_NAMES(TQ2_0),
    GANGLION_TYPE_NAMES(MXFP4),   GANGLION_TYPE_NAMES(NVFP4),
};
#undef GANGLION_TYPE_NAMES

constexpr std::string_view kKvDotNames[kKvTypes] = {"kv_dot F32", "kv_dot F16", "kv_dot Q8_0"};
constexpr std::string_view kKvAxpyNames[kKvTypes] = {"kv_axpy F32", "kv_axpy F16", "kv_axpy Q8_0"};
constexpr std::string_view kKvStoreNames[kKvTypes] = {"kv_store F32", "kv_store F16", "kv_store Q8_0"};
constexpr std::string_view kActivationNames[kActivations] = {
    "gated_activation silu", "gated_activation gelu_tanh", "gated_activation relu", "gated_activation drelu",
    "gated_activation swiglu_oai"};

constexpr std::string_view kDownNames[kDownTypes] = {"down_axpy q4", "down_axpy q6", "down_axpy q8",
                                                     "down_axpy f16", "down_axpy f32"};

using Floats = std::vector<float>;
using Bytes = std::vector<uint8_t>;

template <typename T>
bool same_bytes(const std::vector<T>& a, const std::vector<T>& b) {
  return memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

Floats random_floats(size_t n, uint64_t seed) {
  Floats values(n);
  fill_random_floats(n, &seed, values.data());
  return values;
}

uint8_t* align64(uint8_t* p) {
  return p + (64 - reinterpret_cast<uintptr_t>(p) % 64) % 64;
}

std::string_view differs_in_type(const KernelTable& table, const KernelTable& reference,
                                 const TypeNames& names) {
  const size_t slot = static_cast<size_t>(names.type);
  const size_t stride = base::row_bytes(names.type, kColumns);
  uint64_t seed = 1 + slot;
  Bytes weights(kRows * stride);
  fill_random_blocks(names.type, kRows * kColumns, &seed, weights.data());
  Floats expected(kColumns), got(kColumns);
  reference.dequantize[slot](weights.data(), kColumns, expected.data());
  if (!table.dequantize[slot]) return names.dequantize;
  table.dequantize[slot](weights.data(), kColumns, got.data());
  if (!same_bytes(expected, got)) return names.dequantize;

  const ActivationForm form = activation_form(names.type);
  const size_t x_stride = activation_row_bytes(form, kColumns);
  const Floats x = random_floats(kTokens * kColumns, seed);
  Bytes expected_row(kTokens * x_stride + 64), row(kTokens * x_stride + 64);
  uint8_t* expected_x = align64(expected_row.data());
  uint8_t* got_x = align64(row.data());
  for (size_t t = 0; t < kTokens; ++t) {
    reference.store_activation(form, x.data() + t * kColumns, kColumns, expected_x + t * x_stride);
    table.store_activation(form, x.data() + t * kColumns, kColumns, got_x + t * x_stride);
  }
  if (memcmp(expected_x, got_x, kTokens * x_stride) != 0) return "store_activation";

  Floats expected_out(kTokens * kRows), out(kTokens * kRows);
  MatmulArgs args{weights.data(),      stride, kRows, kColumns, expected_x, x_stride, kTokens,
                  expected_out.data(), kRows};
  reference.matmul[slot](args);
  if (!table.matmul[slot]) return names.matmul;
  args.out = out.data();
  table.matmul[slot](args);
  if (!same_bytes(expected_out, out)) return names.matmul;
  // Scattered rows of fewer tokens.
  const uint8_t* rows[kRows];
  for (size_t r = 0; r < kRows; ++r) rows[r] = args.row(r);
  args.scattered = rows;
  for (args.tokens = 1; args.tokens < kTokens; ++args.tokens) {
    out.assign(out.size(), 0);
    table.matmul[slot](args);
    if (memcmp(expected_out.data(), out.data(), args.tokens * kRows * sizeof(float)) != 0)
      return names.matmul;
  }
  return {};
}

std::string_view differs_in_kv(const KernelTable& table, const KernelTable& reference, size_t kind) {
  constexpr size_t kStride = kKvColumns * sizeof(float);  // Enough for every kind.
  const Floats rows = random_floats(kKvRows * kKvColumns, 11 + kind);
  Bytes expected_kv(kKvRows * kStride), kv(kKvRows * kStride);
  for (size_t j = 0; j < kKvRows; ++j) {
    reference.kv_store[kind](rows.data() + j * kKvColumns, kKvColumns, expected_kv.data() + j * kStride);
    table.kv_store[kind](rows.data() + j * kKvColumns, kKvColumns, kv.data() + j * kStride);
  }
  if (!same_bytes(expected_kv, kv)) return kKvStoreNames[kind];
  const Floats q = random_floats(kKvColumns, 17 + kind);
  Floats expected_scores(kKvRows), scores(kKvRows), expected_out(kKvColumns), out(kKvColumns);
  reference.kv_dot[kind](q.data(), kv.data(), kStride, kKvRows, kKvColumns, expected_scores.data());
  table.kv_dot[kind](q.data(), kv.data(), kStride, kKvRows, kKvColumns, scores.data());
  if (!same_bytes(expected_scores, scores)) return kKvDotNames[kind];
  reference.kv_axpy[kind](scores.data(), kv.data(), kStride, kKvRows, kKvColumns, expected_out.data());
  table.kv_axpy[kind](scores.data(), kv.data(), kStride, kKvRows, kKvColumns, out.data());
  return same_bytes(expected_out, out) ? std::string_view() : kKvAxpyNames[kind];
}

std::string_view differs_in_down(const KernelTable& table, const KernelTable& reference, size_t kind) {
  const auto type = static_cast<DownType>(kind);
  const size_t bytes = down_row_bytes(type, kKvColumns);
  const Floats x = random_floats(kKvRows * kKvColumns, 31 + kind);
  Bytes stored(kKvRows * bytes);
  const uint8_t* rows[kKvRows];
  for (size_t j = 0; j < kKvRows; ++j) {
    quantize_down_row(type, x.data() + j * kKvColumns, kKvColumns, stored.data() + j * bytes);
    rows[j] = stored.data() + j * bytes;
  }
  const Floats weights = random_floats(kKvRows, 37);
  Floats expected = random_floats(kKvColumns, 41);
  Floats got = expected;
  DownArgs args{weights.data(), rows, kKvRows, 32, kKvColumns - 32, expected.data()};
  reference.down_axpy[kind](args);
  args.out = got.data();
  table.down_axpy[kind](args);
  return same_bytes(expected, got) ? std::string_view() : kDownNames[kind];
}

std::string_view differs_in_vectors(const KernelTable& table, const KernelTable& reference) {
  const Floats x = random_floats(kLength, 23);
  const Floats y = random_floats(kLength, 29);
  Floats expected(kLength), got(kLength);
  reference.rms_norm(x.data(), y.data(), kLength, 1e-5f, expected.data());
  table.rms_norm(x.data(), y.data(), kLength, 1e-5f, got.data());
  if (!same_bytes(expected, got)) return "rms_norm";
  expected = got = x;
  const float expected_sum = reference.exp_sum(expected.data(), kLength, 3.0f);
  const float sum = table.exp_sum(got.data(), kLength, 3.0f);
  if (!same_bytes(expected, got) || expected_sum != sum) return "exp_sum";
  for (size_t kind = 0; kind < kActivations; ++kind) {
    expected = got = x;
    reference.gated_activation[kind](expected.data(), y.data(), kLength);
    table.gated_activation[kind](got.data(), y.data(), kLength);
    if (!same_bytes(expected, got)) return kActivationNames[kind];
  }
  expected = got = x;
  reference.add_scaled(y.data(), 0.3f, kLength, expected.data());
  table.add_scaled(y.data(), 0.3f, kLength, got.data());
  return same_bytes(expected, got) ? std::string_view() : "add_scaled";
}

}  // namespace

std::string_view self_test(const KernelTable& table) {
  const KernelTable& reference = reference_table();
  for (const TypeNames& names : kTypeNames) {
    const std::string_view different = differs_in_type(table, reference, names);
    if (!different.empty()) return different;
  }
  for (size_t kind = 0; kind < kKvTypes; ++kind) {
    const std::string_view different = differs_in_kv(table, reference, kind);
    if (!different.empty()) return different;
  }
  for (size_t kind = 0; kind < kDownTypes; ++kind) {
    const std::string_view different = differs_in_down(table, reference, kind);
    if (!different.empty()) return different;
  }
  return differs_in_vectors(table, reference);
}

}  // namespace ganglion::kernels

// Element types of tensors as GGUF files number them, with their block sizes. Knows nothing of their maths.
// Source: the GGUF specification and ggml's public type table; sizes are checked by tests/fixtures/quants.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace ganglion::base {

/// Numbers are those stored in GGUF files.
enum class TensorType : uint32_t {
  kF32 = 0,
  kF16 = 1,
  kQ4_0 = 2,
  kQ4_1 = 3,
  kQ5_0 = 6,
  kQ5_1 = 7,
  kQ8_0 = 8,
  kQ8_1 = 9,
  kQ2_K = 10,
  kQ3_K = 11,
  kQ4_K = 12,
  kQ5_K = 13,
  kQ6_K = 14,
  kQ8_K = 15,
  kIQ2_XXS = 16,
  kIQ2_XS = 17,
  kIQ3_XXS = 18,
  kIQ1_S = 19,
  kIQ4_NL = 20,
  kIQ3_S = 21,
  kIQ2_S = 22,
  kIQ4_XS = 23,
  kI8 = 24,
  kI16 = 25,
  kI32 = 26,
  kI64 = 27,
  kF64 = 28,
  kIQ1_M = 29,
  kBF16 = 30,
  kTQ1_0 = 34,
  kTQ2_0 = 35,
  kMXFP4 = 39,
  kNVFP4 = 40,
};

/// What a type's number means: `block_elems` consecutive elements are stored in `block_bytes` bytes.
struct TensorTypeInfo {
  TensorType type;
  std::string_view name;  ///< As GGUF tools print it, for example "Q4_K".
  uint32_t block_elems;
  uint32_t block_bytes;
  bool computable;  ///< Can be dequantised to float by kernels/ (integers and internal types cannot).
};

/// Null for a number that no known type has (also for the withdrawn ones, 4, 5, 31-33, 36-38).
const TensorTypeInfo* find_tensor_type(uint32_t number);

/// Info of a type that is known to exist.
const TensorTypeInfo& tensor_type_info(TensorType type);

std::span<const TensorTypeInfo> all_tensor_types();

/// Bytes of a row of `elems` elements; `elems` must be a multiple of the block.
uint64_t row_bytes(TensorType type, uint64_t elems);

}  // namespace ganglion::base

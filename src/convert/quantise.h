// Rows of floats to and from the types that a converted file may hold.
#pragma once

#include <cstdint>
#include <span>

#include "base/tensor_type.h"

namespace ganglion::convert {

/// Nearest half, ties to even; infinite above 65504.
uint16_t float_to_half(float value);
float half_to_float(uint16_t bits);

/// out = the `out.size()` values at `in`. Requires: type F32, F16 or BF16.
void to_floats(base::TensorType type, const uint8_t* in, std::span<float> out);

/// Writes `in` as `type` (F32, F16, BF16, Q8_0 or Q4_0) and returns whether it holds them: false where a
/// value is not finite, or above what F16 holds. Shapes:   in.size() a multiple of the type's block; out:
/// row_bytes(type, in.size()). Accuracy: Q8_0 and Q4_0 as GGUF tools round them: scale = largest magnitude /
/// 127, or the value of largest
///           magnitude / -8; nearest step.
[[nodiscard]] bool try_from_floats(base::TensorType type, std::span<const float> in, uint8_t* out);

}  // namespace ganglion::convert

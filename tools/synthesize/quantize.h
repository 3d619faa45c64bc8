// Rows of floats into the types that planted models are written in.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/tensor_type.h"

namespace ganglion::synthesize {

/// F32, F16, Q8_0 and Q4_0.
bool can_encode(base::TensorType type);

/// Writes `n` values (a multiple of the type's block) as one row. Requires: can_encode(type).
void encode_row(base::TensorType type, const float* values, size_t n, uint8_t* out);

}  // namespace ganglion::synthesize

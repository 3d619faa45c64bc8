// Speed of a matrix kernel on weights that stay in cache.
#pragma once

#include <cstdint>
#include <string>

#include "base/tensor_type.h"

namespace ganglion::profile {

/// Multiply-adds per second of one thread, `tokens` rows of activations at once. `isa`: kernel table by name;
/// the best one if there is none of that name.
double measure_kernel(base::TensorType type, const std::string& isa, size_t tokens, int64_t duration_ns);

}  // namespace ganglion::profile

// Pseudo-random weight blocks with finite values, for the self-test and the tests of kernels/.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/tensor_type.h"

namespace ganglion::kernels {

/// xorshift64*: good enough to fill buffers. `state` must not be 0.
uint64_t next_random(uint64_t* state);

/// Fills `elems` elements (a multiple of the block) of a computable type with random bytes, every code and
/// packed scale included, and scales of either sign about 0.01 in size. Values are finite.
void fill_random_blocks(base::TensorType type, size_t elems, uint64_t* state, uint8_t* out);

/// n floats, roughly normal, every 61st about ten times as large.
void fill_random_floats(size_t n, uint64_t* state, float* out);

}  // namespace ganglion::kernels

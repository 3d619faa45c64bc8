// Speed of kernels as passes use them.
#pragma once

#include <cstdint>
#include <string>

#include "base/tensor_type.h"
#include "kernels/kernel_table.h"

namespace ganglion::profile {

/// Multiply-adds per second of one thread: one row of activations, weights that stay in caches. `isa`: kernel
/// table by name; the best one if there is none of that name.
double measure_kernel(base::TensorType type, const std::string& isa, int64_t duration_ns);

/// Rows of activations of measure_prompt_kernel(): 512, or fewer in little memory.
size_t prompt_tokens(size_t memory_bytes);
/// Likewise of prompts: all threads at once, weights out of memory, one in four multiply-adds with the long
/// rows of an FFN's way back (rates are lower there). Takes hardly more than `memory_bytes`.
double measure_prompt_kernel(base::TensorType type, const std::string& isa, int threads, size_t memory_bytes,
                             int64_t duration_ns);

/// Multiply-adds per second of one thread in scores and sums of a head of 128 over 512 positions.
double measure_attention(kernels::KvType type, const std::string& isa, int64_t duration_ns);

}  // namespace ganglion::profile

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

/// Products of a prompt: rows of activations, and columns of weights, some of an FFN's way back.
struct PromptShape {
  size_t tokens;
  size_t columns;
  size_t back_columns;
  double back_share;  ///< Of the multiply-adds.
};
/// Those of an expert of Qwen3-30B-A3B, which has a sixteenth of a prompt's rows.
inline constexpr PromptShape kExpertPrompt = {32, 2048, 768, 1.0 / 3};
/// Those of a dense model of 7B, 512 rows at once, or fewer in little memory. Long rows have lower rates.
PromptShape prompt_shape(size_t memory_bytes);
/// Likewise of prompts: all threads at once, weights out of memory. Takes hardly more than `memory_bytes`.
double measure_prompt_kernel(base::TensorType type, const std::string& isa, const PromptShape& shape,
                             int threads, size_t memory_bytes, int64_t duration_ns);

/// Multiply-adds per second of one thread in scores and sums of a head of 128 over 512 positions.
double measure_attention(kernels::KvType type, const std::string& isa, int64_t duration_ns);

}  // namespace ganglion::profile

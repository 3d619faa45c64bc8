// Speed of kernels as passes use them.
#pragma once

#include <cstdint>
#include <string>

#include "base/tensor_type.h"
#include "kernels/kernel_table.h"

namespace ganglion::profile {

/// A matrix product that all threads compute at once, each with weights of its own.
struct KernelCase {
  base::TensorType type{};
  std::string isa;  ///< Kernel table by name; the best one if there is none of that name.
  int threads = 1;
  size_t tokens = 1;        ///< Rows of activations, [tokens][4096], which threads share.
  size_t weight_bytes = 0;  ///< Walked through by all threads together; 0: what stays in caches.
};
/// A prompt's chunk, 512 tokens or fewer in little memory, and weights of `memory_bytes` at most.
KernelCase prompt_case(base::TensorType type, const std::string& isa, int threads, size_t memory_bytes);

/// Multiply-adds per second of one thread.
double measure_kernel(const KernelCase& kernel, int64_t duration_ns);

/// Multiply-adds per second of one thread in scores and sums of a head of 128 over 512 positions.
double measure_attention(kernels::KvType type, const std::string& isa, int64_t duration_ns);

}  // namespace ganglion::profile

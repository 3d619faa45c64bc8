// The two operations, computed with a kernel table: the processor's arithmetic, bit for bit.
#pragma once

#include <cstdint>
#include <vector>

#include "accelerator/backend.h"

namespace ganglion::accelerator {

/// Addresses of a block's rows.
struct BlockRows {
  const uint8_t* gate;
  const uint8_t* up;
  const uint8_t* down;
  uint32_t gate_stride;
  uint32_t up_stride;
  uint32_t down_stride;
};

/// A graph: shape, weights and scratch. One thread at a time.
class FfnCompute {
 public:
  FfnCompute(const kernels::KernelTable& kernels, const FfnLayer& layer, std::vector<BlockRows> blocks,
             uint32_t bucket);
  /// Shapes as FfnShape says. No allocation.
  void run(const float* x, float* out);

 private:
  void multiply(base::TensorType type, const uint8_t* rows, uint32_t stride, const float* x, float* out);
  void activate();

  const kernels::KernelTable& kernels_;
  FfnLayer layer_;
  std::vector<BlockRows> blocks_;
  uint32_t bucket_;
  std::vector<uint8_t> stored_;  // x in the form of a type
  std::vector<float> gates_;     // [bucket][N], then values
  std::vector<float> ups_;       // [bucket][N]
  std::vector<float> weights_;   // [N]
  std::vector<const uint8_t*> rows_;
};

class MatmulCompute {
 public:
  MatmulCompute(const kernels::KernelTable& kernels, const MatmulShape& shape);
  void run(const uint8_t* weights, const float* x, float* out);

 private:
  const kernels::KernelTable& kernels_;
  MatmulShape shape_;
  std::vector<uint8_t> stored_;
};

}  // namespace ganglion::accelerator

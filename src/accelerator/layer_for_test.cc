#include "accelerator/layer_for_test.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/random_blocks.h"

namespace ganglion::accelerator {

using base::Result;

TestBundles random_bundles(const FfnLayer& layer, uint32_t blocks, uint64_t seed) {
  TestBundles b{.layer = layer, .blocks = blocks, .bytes = {}};
  b.gate_bytes = static_cast<uint32_t>(base::row_bytes(layer.format.gate, layer.dim));
  b.up_bytes = static_cast<uint32_t>(base::row_bytes(layer.format.up, layer.dim));
  b.stride = b.gate_bytes + b.up_bytes +
             static_cast<uint32_t>(kernels::down_row_bytes(layer.format.down, layer.dim));
  const size_t neurons = size_t{blocks} * layer.block_neurons;
  b.bytes.resize(neurons * b.stride);
  std::vector<float> down(layer.dim);
  for (size_t i = 0; i < neurons; ++i) {
    uint8_t* at = b.bytes.data() + i * b.stride;
    kernels::fill_random_blocks(layer.format.gate, layer.dim, &seed, at);
    kernels::fill_random_blocks(layer.format.up, layer.dim, &seed, at + b.gate_bytes);
    kernels::fill_random_floats(layer.dim, &seed, down.data());
    kernels::quantize_down_row(layer.format.down, down.data(), layer.dim, at + b.gate_bytes + b.up_bytes);
  }
  return b;
}

Result<BufferId> upload(Backend& backend, const TestBundles& b, uint32_t window) {
  GANGLION_ASSIGN_OR_RETURN(const BufferId id,
                            backend.create_buffer({.bytes = b.bytes.size(), .window = window}));
  GANGLION_ASSIGN_OR_RETURN(const std::span<uint8_t> view, backend.begin_access(id, Access::kReadWrite));
  std::memcpy(view.data(), b.bytes.data(), b.bytes.size());
  GANGLION_RETURN_IF_ERROR(backend.end_access(id));
  GANGLION_RETURN_IF_ERROR(backend.define_layer(b.layer));
  for (uint32_t k = 0; k < b.blocks; ++k) {
    const uint64_t at = uint64_t{k} * b.layer.block_neurons * b.stride;
    GANGLION_RETURN_IF_ERROR(
        backend.add_block(b.layer.layer, {.gate = {{id, at}, b.stride},
                                          .up = {{id, at + b.gate_bytes}, b.stride},
                                          .down = {{id, at + b.gate_bytes + b.up_bytes}, b.stride}}));
  }
  return id;
}

std::vector<double> exact_ffn(const TestBundles& b, uint32_t blocks, const std::vector<float>& x,
                              std::vector<double>* slack) {
  const size_t dim = b.layer.dim;
  const size_t tokens = x.size() / dim;
  const kernels::KernelTable& reference = kernels::reference_table();
  std::vector<float> gate(dim), up(dim), down(dim);
  std::vector<double> out(tokens * dim);
  slack->assign(tokens * dim, 0);
  const float one = 1;
  for (size_t i = 0; i < size_t{blocks} * b.layer.block_neurons; ++i) {
    const uint8_t* at = b.bytes.data() + i * b.stride;
    reference.dequantize[static_cast<size_t>(b.layer.format.gate)](at, dim, gate.data());
    reference.dequantize[static_cast<size_t>(b.layer.format.up)](at + b.gate_bytes, dim, up.data());
    const uint8_t* row = at + b.gate_bytes + b.up_bytes;
    std::fill(down.begin(), down.end(), 0.0F);
    reference.down_axpy[static_cast<size_t>(b.layer.format.down)](
        {.weights = &one, .rows = &row, .count = 1, .begin = 0, .n = dim, .out = down.data()});
    for (size_t t = 0; t < tokens; ++t) {
      double g = 0, u = 0, size = 0;
      for (size_t j = 0; j < dim; ++j) {
        const double v = static_cast<double>(x[t * dim + j]);
        g += static_cast<double>(gate[j]) * v;
        u += static_cast<double>(up[j]) * v;
        size += static_cast<double>(gate[j]) * v * static_cast<double>(gate[j]) * v;
      }
      const bool silu = b.layer.activation == Activation::kSilu;
      const double a = silu ? g / (1 + std::exp(-g)) : g;
      const double measure = silu ? std::fabs(a) : a;
      const double threshold = static_cast<double>(b.layer.threshold);
      if (b.layer.activation == Activation::kDRelu) u = std::max(u, 0.0);
      const bool near = threshold != 0 && std::fabs(measure - threshold) < 0.1 * std::sqrt(size);
      for (size_t j = 0; j < dim; ++j) {
        const double value = a * u * static_cast<double>(down[j]);
        if (measure > threshold) out[t * dim + j] += value;
        if (near) (*slack)[t * dim + j] += std::fabs(value);
      }
    }
  }
  return out;
}

}  // namespace ganglion::accelerator

#include "accelerator/sample_layer.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/units.h"
#include "kernels/random_blocks.h"

namespace ganglion::accelerator {

using base::Result;
using base::Status;

namespace {

uint32_t padded(uint64_t bytes, uint32_t alignment) {
  return static_cast<uint32_t>(base::round_up(bytes, alignment));
}

/// act(gate) and the up of a neuron and token, and how near the gate is to the threshold.
struct Gated {
  double act;
  double up;
  bool open;
  double distance;
};
Gated gated(const FfnLayer& layer, double gate, double up) {
  const bool silu = layer.activation == Activation::kSilu;
  const double act = silu ? gate / (1 + std::exp(-gate)) : gate;
  const double measure = silu ? std::fabs(act) : act;
  const auto threshold = static_cast<double>(layer.threshold);
  return {.act = act,
          .up = layer.activation == Activation::kDRelu ? std::max(up, 0.0) : up,
          .open = measure > threshold,
          .distance = std::fabs(measure - threshold)};
}

/// Calls visit(down row [D], gates, ups) for each neuron of the first blocks.
template <typename Visit>
void for_each_neuron(const SampleBundles& b, uint32_t blocks, const Visit& visit) {
  const size_t dim = b.layer.dim;
  const kernels::KernelTable& reference = kernels::reference_table();
  std::vector<float> gate(dim), up(dim), down(dim);
  const float one = 1;
  for (size_t i = 0; i < size_t{blocks} * b.layer.block_neurons; ++i) {
    const uint8_t* at = b.bytes.data() + i * b.stride;
    reference.dequantize[static_cast<size_t>(b.layer.format.gate)](at, dim, gate.data());
    reference.dequantize[static_cast<size_t>(b.layer.format.up)](at + b.gate_bytes, dim, up.data());
    const uint8_t* row = at + b.gate_bytes + b.up_bytes;
    std::fill(down.begin(), down.end(), 0.0F);
    reference.down_axpy[static_cast<size_t>(b.layer.format.down)](
        {.weights = &one, .rows = &row, .count = 1, .begin = 0, .n = dim, .out = down.data()});
    visit(gate, up, down);
  }
}

}  // namespace

Dot dot(std::span<const float> row, const float* x) {
  Dot d;
  for (size_t j = 0; j < row.size(); ++j) {
    const double term = static_cast<double>(row[j]) * static_cast<double>(x[j]);
    d.value += term;
    d.size += std::fabs(term);
  }
  return d;
}

SampleBundles random_bundles(const FfnLayer& layer, uint32_t blocks, uint64_t seed, uint32_t alignment) {
  SampleBundles b{.layer = layer, .blocks = blocks, .bytes = {}};
  b.gate_bytes = padded(base::row_bytes(layer.format.gate, layer.dim), alignment);
  b.up_bytes = padded(base::row_bytes(layer.format.up, layer.dim), alignment);
  b.stride =
      b.gate_bytes + b.up_bytes + padded(kernels::down_row_bytes(layer.format.down, layer.dim), alignment);
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

Status add_blocks(Backend& backend, const SampleBundles& b, BufferId buffer) {
  for (uint32_t k = 0; k < b.blocks; ++k) {
    const uint64_t at = uint64_t{k} * b.layer.block_neurons * b.stride;
    GANGLION_RETURN_IF_ERROR(
        backend.add_block(b.layer.layer, {.gate = {{buffer, at}, b.stride},
                                          .up = {{buffer, at + b.gate_bytes}, b.stride},
                                          .down = {{buffer, at + b.gate_bytes + b.up_bytes}, b.stride}}));
  }
  return base::ok_status();
}

Result<BufferId> upload(Backend& backend, const SampleBundles& b, uint32_t window) {
  GANGLION_ASSIGN_OR_RETURN(const BufferId id,
                            backend.create_buffer({.bytes = b.bytes.size(), .window = window}));
  GANGLION_ASSIGN_OR_RETURN(const std::span<uint8_t> view, backend.begin_access(id, Access::kReadWrite));
  std::memcpy(view.data(), b.bytes.data(), b.bytes.size());
  GANGLION_RETURN_IF_ERROR(backend.end_access(id));
  GANGLION_RETURN_IF_ERROR(backend.define_layer(b.layer));
  GANGLION_RETURN_IF_ERROR(add_blocks(backend, b, id));
  return id;
}

FfnTruth ffn_truth(const SampleBundles& b, uint32_t blocks, const std::vector<float>& x, double near) {
  const size_t dim = b.layer.dim;
  FfnTruth truth;
  for (auto* v : {&truth.out, &truth.sizes, &truth.slack}) v->assign(x.size(), 0);
  for_each_neuron(b, blocks, [&](const auto& gate_row, const auto& up_row, const auto& down) {
    for (size_t t = 0; t < x.size() / dim; ++t) {
      const Dot gate = dot(gate_row, x.data() + t * dim);
      const Dot up = dot(up_row, x.data() + t * dim);
      const Gated value = gated(b.layer, gate.value, up.value);
      const double a = std::fabs(value.act), u = std::fabs(value.up);
      // Neither activation is steeper than 1.1.
      const double size = value.open ? 1.1 * gate.size * u + a * up.size + a * u : 0;
      const bool is_near = b.layer.threshold != 0 && value.distance < near * gate.size;
      for (size_t j = 0; j < dim; ++j) {
        const auto d = static_cast<double>(down[j]);
        if (value.open) truth.out[t * dim + j] += value.act * value.up * d;
        if (is_near) truth.slack[t * dim + j] += a * u * std::fabs(d);
        truth.sizes[t * dim + j] += size * std::fabs(d);
      }
    }
  });
  return truth;
}

}  // namespace ganglion::accelerator

#include "accelerator/sim_compute.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/units.h"

namespace ganglion::accelerator {

using base::TensorType;
using kernels::ActivationForm;

namespace {

constexpr size_t kAlignment = 64;

uint8_t* aligned(std::vector<uint8_t>& bytes) {
  return bytes.data() + (kAlignment - reinterpret_cast<uintptr_t>(bytes.data()) % kAlignment) % kAlignment;
}

/// The rows of x [tokens][n] in the form that products with `type` take.
uint8_t* store(const kernels::KernelTable& kernels, TensorType type, const float* x, size_t tokens, size_t n,
               std::vector<uint8_t>& to) {
  const ActivationForm form = kernels::activation_form(type);
  const size_t stride = kernels::activation_row_bytes(form, n);
  uint8_t* rows = aligned(to);
  for (size_t t = 0; t < tokens; ++t) kernels.store_activation(form, x + t * n, n, rows + t * stride);
  return rows;
}

size_t stored_bytes(TensorType type, size_t tokens, size_t n) {
  return tokens * kernels::activation_row_bytes(kernels::activation_form(type), n) + kAlignment;
}

}  // namespace

FfnCompute::FfnCompute(const kernels::KernelTable& kernels, const FfnLayer& layer,
                       std::vector<BlockRows> blocks, uint32_t bucket)
    : kernels_(kernels), layer_(layer), blocks_(std::move(blocks)), bucket_(bucket) {
  stored_.resize(std::max(stored_bytes(layer.format.gate, bucket, layer.dim),
                          stored_bytes(layer.format.up, bucket, layer.dim)));
  const size_t neurons = layer.block_neurons;
  gates_.resize(bucket * neurons);
  ups_.resize(bucket * neurons);
  weights_.resize(neurons);
  rows_.resize(neurons);
}

void FfnCompute::multiply(TensorType type, const uint8_t* rows, uint32_t stride, const float* x, float* out) {
  const ActivationForm form = kernels::activation_form(type);
  kernels_.matmul[static_cast<size_t>(type)]({.weights = rows,
                                              .weight_stride = stride,
                                              .rows = layer_.block_neurons,
                                              .n = layer_.dim,
                                              .x = store(kernels_, type, x, bucket_, layer_.dim, stored_),
                                              .x_stride = kernels::activation_row_bytes(form, layer_.dim),
                                              .tokens = bucket_,
                                              .out = out,
                                              .out_stride = layer_.block_neurons});
}

// gates [bucket][N] = act(gate) * up, 0 where the gate is closed.
void FfnCompute::activate() {
  if (layer_.activation == Activation::kSilu) {
    std::fill(weights_.begin(), weights_.end(), 1.0F);
    const auto silu = kernels_.gated_activation[static_cast<size_t>(kernels::Activation::kSilu)];
    for (size_t t = 0; t < bucket_; ++t) {
      silu(gates_.data() + t * layer_.block_neurons, weights_.data(), layer_.block_neurons);
    }
  }
  const bool silu = layer_.activation == Activation::kSilu;
  for (size_t i = 0; i < gates_.size(); ++i) {
    const float gate = gates_[i];
    const bool open = silu ? !(std::fabs(gate) <= layer_.threshold) : gate > layer_.threshold;
    const float up = layer_.activation == Activation::kDRelu ? std::max(ups_[i], 0.0F) : ups_[i];
    gates_[i] = open ? gate * up : 0.0F;
  }
}

void FfnCompute::run(const float* x, float* out) {
  std::fill_n(out, size_t{bucket_} * layer_.dim, 0.0F);
  const auto add = kernels_.down_axpy[static_cast<size_t>(layer_.format.down)];
  for (const BlockRows& block : blocks_) {
    multiply(layer_.format.gate, block.gate, block.gate_stride, x, gates_.data());
    multiply(layer_.format.up, block.up, block.up_stride, x, ups_.data());
    activate();
    for (size_t t = 0; t < bucket_; ++t) {
      size_t count = 0;
      for (size_t i = 0; i < layer_.block_neurons; ++i) {
        const float value = gates_[t * layer_.block_neurons + i];
        if (value == 0) continue;
        weights_[count] = value;
        rows_[count++] = block.down + i * block.down_stride;
      }
      add({.weights = weights_.data(),
           .rows = rows_.data(),
           .count = count,
           .begin = 0,
           .n = layer_.dim,
           .out = out + t * layer_.dim});
    }
  }
}

MatmulCompute::MatmulCompute(const kernels::KernelTable& kernels, const MatmulShape& shape)
    : kernels_(kernels), shape_(shape), stored_(stored_bytes(shape.type, shape.bucket, shape.cols)) {}

void MatmulCompute::run(const uint8_t* weights, const float* x, float* out) {
  const ActivationForm form = kernels::activation_form(shape_.type);
  kernels_.matmul[static_cast<size_t>(shape_.type)](
      {.weights = weights,
       .weight_stride = base::row_bytes(shape_.type, shape_.cols),
       .rows = shape_.rows,
       .n = shape_.cols,
       .x = store(kernels_, shape_.type, x, shape_.bucket, shape_.cols, stored_),
       .x_stride = kernels::activation_row_bytes(form, shape_.cols),
       .tokens = shape_.bucket,
       .out = out,
       .out_stride = shape_.rows});
}

}  // namespace ganglion::accelerator

// Rows of floats and of activations, and their products on all threads: what fitting and counting share.
#pragma once

#include <cstdint>
#include <vector>

#include "base/tensor_type.h"
#include "base/units.h"
#include "kernels/kernel_table.h"
#include "platform/threads.h"

namespace ganglion::calibration {

/// Rows of floats, 64-byte aligned.
class Rows {
 public:
  Rows(size_t rows, size_t cols)
      : rows_(rows), cols_(cols), stride_(base::round_up(cols, 16)), data_(rows * stride_ + 16) {
    begin_ = data_.data() + (64 - reinterpret_cast<uintptr_t>(data_.data()) % 64) % 64 / sizeof(float);
  }
  float* operator[](size_t row) { return begin_ + row * stride_; }
  const float* operator[](size_t row) const { return begin_ + row * stride_; }
  size_t rows() const { return rows_; }
  size_t cols() const { return cols_; }
  size_t stride() const { return stride_; }

 private:
  size_t rows_;
  size_t cols_;
  size_t stride_;
  std::vector<float> data_;
  float* begin_;
};

/// Activations in the form that a weight type reads.
class Activations {
 public:
  /// `rows` [count][n], `stride` floats apart.
  Activations(const kernels::KernelTable& kernels, platform::ThreadPool& threads, base::TensorType type,
              size_t count, size_t n, const float* rows, size_t stride);
  const uint8_t* row(size_t i) const { return begin_ + i * bytes_; }
  size_t stride() const { return bytes_; }

 private:
  kernels::ActivationForm form_;
  size_t bytes_;
  std::vector<uint8_t> data_;
  uint8_t* begin_;
};

/// Rows of a quantised matrix, one after the other.
struct WeightRows {
  base::TensorType type = base::TensorType::kF32;
  const uint8_t* data = nullptr;
  size_t rows = 0;
  size_t n = 0;  ///< Elements of a row.
};

/// out [tokens][weights.rows]: their products with every `step`th row of x.
void multiply(const kernels::KernelTable& kernels, platform::ThreadPool& threads, const WeightRows& weights,
              const Activations& x, size_t tokens, Rows* out, size_t step = 1);

/// The product `all`, its rows cut over the threads. The bits do not depend on how they are cut.
void multiply(const kernels::KernelTable& kernels, platform::ThreadPool& threads, base::TensorType type,
              const kernels::MatmulArgs& all);

}  // namespace ganglion::calibration

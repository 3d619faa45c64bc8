// Buffers of a forward pass, cut from one region: the same code counts their bytes for the plan and hands
// them out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/check.h"
#include "base/units.h"
#include "kernels/kernel_table.h"
#include "platform/threads.h"

namespace ganglion::engine {

/// Hands out consecutive 64-byte aligned buffers; without memory it only counts.
class ScratchAllocator {
 public:
  ScratchAllocator() = default;
  explicit ScratchAllocator(std::span<uint8_t> memory) : memory_(memory) {}

  template <typename T>
  T* take(size_t count) {
    const size_t bytes = base::round_up(count * sizeof(T), kAlignment);
    uint8_t* at = memory_.data() == nullptr ? nullptr : memory_.data() + used_;
    used_ += bytes;
    GANGLION_CHECK(memory_.data() == nullptr || used_ <= memory_.size());
    return reinterpret_cast<T*>(at);
  }
  /// The next buffer starts on a multiple of `alignment` (of the region, which is 2 MiB aligned).
  void align(size_t alignment) { used_ = base::round_up(used_, alignment); }
  size_t used() const { return used_; }

 private:
  static constexpr size_t kAlignment = 64;
  std::span<uint8_t> memory_;
  size_t used_ = 0;
};

/// Which activation forms a group of matrices reads.
class FormSet {
 public:
  void add(base::TensorType weights) {
    bits_ |= 1U << static_cast<unsigned>(kernels::activation_form(weights));
  }
  void add(const FormSet& other) { bits_ |= other.bits_; }
  bool has(kernels::ActivationForm form) const { return (bits_ >> static_cast<unsigned>(form) & 1U) != 0; }

 private:
  unsigned bits_ = 0;
};

/// Rows of `size` floats with room for the integer forms that kernels read. A view: copies share the buffers.
class ActivationRows {
 public:
  ActivationRows() = default;
  ActivationRows(ScratchAllocator& scratch, size_t rows, size_t size, const FormSet& forms) : size_(size) {
    using kernels::ActivationForm;
    for (const ActivationForm form :
         {ActivationForm::kF32, ActivationForm::kQ8Block32, ActivationForm::kQ8Block256}) {
      const auto i = static_cast<size_t>(form);
      if (form != ActivationForm::kF32 && !forms.has(form)) continue;
      stride_[i] = kernels::activation_row_bytes(form, size);
      data_[i] = scratch.take<uint8_t>(rows * stride_[i]);
    }
  }

  size_t size() const { return size_; }
  float* floats(size_t row) const { return reinterpret_cast<float*>(data_[0] + row * stride_[0]); }
  size_t float_stride() const { return stride_[0] / sizeof(float); }
  const uint8_t* row(kernels::ActivationForm form, size_t row) const {
    return data_[static_cast<size_t>(form)] + row * stride_[static_cast<size_t>(form)];
  }
  size_t stride(kernels::ActivationForm form) const { return stride_[static_cast<size_t>(form)]; }

  /// Makes the integer forms in `forms` of the first `n` floats of a row.
  void store_forms(const kernels::KernelTable& kernels, const FormSet& forms, size_t row, size_t n) const {
    using kernels::ActivationForm;
    for (const ActivationForm form : {ActivationForm::kQ8Block32, ActivationForm::kQ8Block256}) {
      if (!forms.has(form)) continue;
      const auto i = static_cast<size_t>(form);
      kernels.store_activation(form, floats(row), n, data_[i] + row * stride_[i]);
    }
  }
  /// Copies the floats and all integer forms of a row of `from`.
  void copy_row(size_t to_row, const ActivationRows& from, size_t from_row) const;

 private:
  size_t size_ = 0;
  size_t stride_[3] = {};
  uint8_t* data_[3] = {};
};

}  // namespace ganglion::engine

#include "calibration/dense_rows.h"

#include <algorithm>

namespace ganglion::calibration {

Activations::Activations(const kernels::KernelTable& kernels, platform::ThreadPool& threads,
                         base::TensorType type, size_t count, size_t n, const float* rows, size_t stride)
    : form_(kernels::activation_form(type)), bytes_(kernels::activation_row_bytes(form_, n)) {
  data_.resize(count * bytes_ + 64);
  begin_ = data_.data() + (64 - reinterpret_cast<uintptr_t>(data_.data()) % 64) % 64;
  threads.parallel_for(count, 8, [&](size_t begin, size_t end, int) {
    for (size_t i = begin; i < end; ++i)
      kernels.store_activation(form_, rows + i * stride, n, begin_ + i * bytes_);
  });
}

void multiply(const kernels::KernelTable& kernels, platform::ThreadPool& threads, base::TensorType type,
              const kernels::MatmulArgs& all) {
  constexpr size_t kRowsPerTask = 32;
  threads.parallel_for(base::ceil_div(all.rows, kRowsPerTask), 1, [&](size_t begin, size_t end, int) {
    for (size_t task = begin; task < end; ++task) {
      const size_t row = task * kRowsPerTask;
      kernels::MatmulArgs part = all;
      part.weights += row * all.weight_stride;
      part.rows = std::min(kRowsPerTask, all.rows - row);
      part.out += row;
      kernels.matmul[static_cast<size_t>(type)](part);
    }
  });
}

void multiply(const kernels::KernelTable& kernels, platform::ThreadPool& threads, const WeightRows& weights,
              const Activations& x, size_t tokens, Rows* out, size_t step) {
  multiply(kernels, threads, weights.type,
           {.weights = weights.data,
            .weight_stride = base::row_bytes(weights.type, weights.n),
            .rows = weights.rows,
            .n = weights.n,
            .x = x.row(0),
            .x_stride = x.stride() * step,
            .tokens = tokens,
            .out = (*out)[0],
            .out_stride = out->stride()});
}

}  // namespace ganglion::calibration

#include "low_rank.h"

#include <cmath>

#include "aligned.h"
#include "kernels/kernel_table.h"
#include "kernels/random_blocks.h"

namespace ganglion::synthesize {

namespace {

constexpr int kIterations = 3;
constexpr size_t kRowsAtOnce = 64;

double dot(const float* a, const float* b, size_t n) {
  float lanes[16] = {};
  size_t i = 0;
  for (; i + 16 <= n; i += 16) {
    for (size_t k = 0; k < 16; ++k) lanes[k] += a[i + k] * b[i + k];
  }
  double sum = 0;
  for (const float lane : lanes) sum += static_cast<double>(lane);
  for (; i < n; ++i) sum += static_cast<double>(a[i] * b[i]);
  return sum;
}

// Removes the mean row; returns the sum of the squares of what is left.
double centre(std::vector<float>& matrix, size_t row) {
  const size_t rows = matrix.size() / row;
  std::vector<double> mean(row);
  for (size_t i = 0; i < matrix.size(); ++i) mean[i % row] += static_cast<double>(matrix[i]);
  double energy = 0;
  for (size_t r = 0; r < rows; ++r) {
    float* values = matrix.data() + r * row;
    for (size_t i = 0; i < row; ++i) values[i] -= static_cast<float>(mean[i] / static_cast<double>(rows));
    energy += dot(values, values, row);
  }
  return energy;
}

// Makes the rows of q [count][row], `stride` floats apart, orthonormal (modified Gram-Schmidt).
void orthonormalise(const kernels::KernelTable& table, float* q, size_t count, size_t row, size_t stride) {
  for (size_t k = 0; k < count; ++k) {
    float* own = q + k * stride;
    for (size_t j = 0; j < k; ++j) {
      const float* other = q + j * stride;
      table.add_scaled(other, static_cast<float>(-dot(own, other, row)), row, own);
    }
    const auto scale = static_cast<float>(1 / std::sqrt(dot(own, own, row)));
    for (size_t i = 0; i < row; ++i) own[i] *= scale;
  }
}

}  // namespace

double low_rank_share(std::vector<float>* matrix, uint64_t row, uint32_t rank,
                      platform::ThreadPool& threads) {
  const kernels::KernelTable& table = *kernels::available_tables()[0];
  const double energy = centre(*matrix, row);
  const size_t rows = matrix->size() / row;
  const size_t stride_bytes = kernels::activation_row_bytes(kernels::ActivationForm::kF32, row);
  const size_t stride = stride_bytes / sizeof(float);
  AlignedBytes q(rank * stride_bytes);
  uint64_t random = 1;
  for (size_t k = 0; k < rank; ++k) kernels::fill_random_floats(row, &random, q.floats() + k * stride);
  std::vector<float> products(rank * rows);  // [rank][rows]
  for (int iteration = 0; iteration <= kIterations; ++iteration) {
    orthonormalise(table, q.floats(), rank, row, stride);
    threads.parallel_for(rows, kRowsAtOnce, [&](size_t begin, size_t end, int) {
      table.matmul[static_cast<size_t>(base::TensorType::kF32)](
          {.weights = reinterpret_cast<const uint8_t*>(matrix->data() + begin * row),
           .weight_stride = row * sizeof(float),
           .rows = end - begin,
           .n = row,
           .x = q.bytes(),
           .x_stride = stride_bytes,
           .tokens = rank,
           .out = products.data() + begin,
           .out_stride = rows});
    });
    if (iteration == kIterations) break;
    threads.parallel_for(rank, 16, [&](size_t begin, size_t end, int) {
      for (size_t k = begin; k < end; ++k) std::fill_n(q.floats() + k * stride, stride, 0.0F);
      for (size_t r = 0; r < rows; ++r) {
        for (size_t k = begin; k < end; ++k)
          table.add_scaled(matrix->data() + r * row, products[k * rows + r], row, q.floats() + k * stride);
      }
    });
  }
  double held = 0;
  for (size_t k = 0; k < rank; ++k) held += dot(&products[k * rows], &products[k * rows], rows);
  return held / energy;
}

}  // namespace ganglion::synthesize

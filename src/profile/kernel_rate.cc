#include "profile/kernel_rate.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <vector>

#include "base/units.h"
#include "kernels/random_blocks.h"
#include "platform/clock.h"
#include "platform/threads.h"
#include "profile/mapping.h"

namespace ganglion::profile {

namespace {

constexpr size_t kRows = 64;  // Of a task.
constexpr size_t kColumns = 4096;
constexpr PromptShape kDensePrompt = {512, kColumns, 14336, 0.25};
constexpr size_t kBytesPerToken = 32 * base::kKiB;  // In little memory, fewer.
constexpr size_t kPromptWeightBytes = 64 * base::kMiB;
// The median of so many: other work on the machine distorts single ones.
constexpr int kParts = 5;

template <typename Measure>
double median_of(Measure&& measure) {
  std::array<double, kParts> rates;
  for (double& rate : rates) rate = measure();
  std::nth_element(rates.begin(), rates.begin() + kParts / 2, rates.end());
  return rates[kParts / 2];
}

const kernels::KernelTable& table_of(const std::string& isa) {
  const kernels::KernelTable* table = kernels::select_table(isa);
  return table != nullptr ? *table : kernels::reference_table();
}

// A matrix product that all threads compute at once, each on rows of its own.
struct KernelCase {
  base::TensorType type{};
  std::string isa;
  int threads = 1;
  size_t tokens = 1;
  size_t columns = kColumns;
};

// Random blocks, the same ones again and again; rows of any length divide them.
void fill_weights(base::TensorType type, std::span<uint8_t> weights) {
  const size_t part = std::min(weights.size(), kRows * base::row_bytes(type, kColumns));
  const base::TensorTypeInfo& info = base::tensor_type_info(type);
  uint64_t random = 7;
  kernels::fill_random_blocks(type, part / info.block_bytes * info.block_elems, &random, weights.data());
  for (size_t at = part; at < weights.size(); at += part)
    std::copy_n(weights.data(), std::min(part, weights.size() - at), weights.data() + at);
}

// `weights` are walked through by all threads together.
double measure(const KernelCase& kernel, std::span<const uint8_t> weights, int64_t duration_ns) {
  const kernels::KernelTable& table = table_of(kernel.isa);
  const kernels::ActivationForm form = kernels::activation_form(kernel.type);
  const size_t row_bytes = base::row_bytes(kernel.type, kernel.columns);
  const size_t task_bytes = kRows * row_bytes;
  const size_t x_bytes = kernels::activation_row_bytes(form, kernel.columns);
  const auto threads = static_cast<size_t>(kernel.threads);
  const size_t tasks = weights.size() / task_bytes;
  const Mapping x_memory(kernel.tokens * x_bytes);
  const Mapping out_memory(threads * kernel.tokens * kRows * sizeof(float));
  const std::span<uint8_t> x = x_memory.as();
  const std::span<float> out = out_memory.as<float>();
  if (tasks == 0 || x.empty() || out.empty()) return 0;
  uint64_t random = 11;
  std::vector<float> floats(kernel.columns);
  kernels::fill_random_floats(kernel.columns, &random, floats.data());
  for (size_t t = 0; t < kernel.tokens; ++t)
    table.store_activation(form, floats.data(), kernel.columns, x.data() + t * x_bytes);
  platform::ThreadPool pool(kernel.threads);
  std::atomic<size_t> next{0};
  return median_of([&] {
    const size_t before = next.load();
    const int64_t start = platform::now_ns();
    pool.parallel_for(threads, 1, [&](size_t first, size_t last, int) {
      for (size_t i = first; i < last; ++i) {
        auto* to = out.data() + i * kernel.tokens * kRows;
        while (platform::now_ns() - start < duration_ns / kParts) {
          const size_t task = next.fetch_add(1, std::memory_order_relaxed) % tasks;
          table.matmul[static_cast<size_t>(kernel.type)]({weights.data() + task * task_bytes, row_bytes,
                                                          kRows, kernel.columns, x.data(), x_bytes,
                                                          kernel.tokens, to, kRows});
        }
      }
    });
    const double ns = static_cast<double>(platform::now_ns() - start);
    return static_cast<double>((next.load() - before) * kRows * kernel.columns * kernel.tokens) * 1e9 / ns /
           kernel.threads;
  });
}

}  // namespace

double measure_kernel(base::TensorType type, const std::string& isa, int64_t duration_ns) {
  const Mapping weights(kRows * base::row_bytes(type, kColumns));
  fill_weights(type, weights.as());
  return measure({.type = type, .isa = isa}, weights.as(), duration_ns);
}

PromptShape prompt_shape(size_t memory_bytes) {
  PromptShape shape = kDensePrompt;
  shape.tokens = std::clamp(memory_bytes / kBytesPerToken, 2 * kExpertPrompt.tokens, shape.tokens);
  return shape;
}

double measure_prompt_kernel(base::TensorType type, const std::string& isa, const PromptShape& shape,
                             int threads, size_t memory_bytes, int64_t duration_ns) {
  KernelCase kernel = {
      .type = type, .isa = isa, .threads = threads, .tokens = shape.tokens, .columns = shape.columns};
  // At least a task of each kind of rows.
  const size_t longest = std::max(shape.columns, shape.back_columns);
  const Mapping weights(
      std::max(std::min(memory_bytes, kPromptWeightBytes), kRows * base::row_bytes(type, longest)));
  fill_weights(type, weights.as());
  const double there = measure(kernel, weights.as(), duration_ns / 2);
  kernel.columns = shape.back_columns;
  const double back = measure(kernel, weights.as(), duration_ns / 2);
  return 1 / ((1 - shape.back_share) / there + shape.back_share / back);
}

double measure_attention(kernels::KvType type, const std::string& isa, int64_t duration_ns) {
  constexpr size_t kPositions = 512;
  constexpr size_t kHead = 128;
  constexpr size_t kStride = kHead * sizeof(float);  // Of the widest type.
  const kernels::KernelTable& table = table_of(isa);
  const auto index = static_cast<size_t>(type);
  uint64_t random = 7;
  std::vector<float> x(kHead), scores(kPositions), out(kHead);
  std::vector<uint8_t> rows(kPositions * kStride);
  for (size_t j = 0; j < kPositions; ++j) {
    kernels::fill_random_floats(kHead, &random, x.data());
    table.kv_store[index](x.data(), kHead, rows.data() + j * kStride);
  }
  return median_of([&] {
    const int64_t start = platform::now_ns();
    double done = 0;
    while (platform::now_ns() - start < duration_ns / kParts) {
      table.kv_dot[index](x.data(), rows.data(), kStride, kPositions, kHead, scores.data());
      table.kv_axpy[index](scores.data(), rows.data(), kStride, kPositions, kHead, out.data());
      done += 2 * kPositions * kHead;
    }
    return done * 1e9 / static_cast<double>(platform::now_ns() - start);
  });
}

}  // namespace ganglion::profile

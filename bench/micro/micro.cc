// Rates of single kernels, to compare with the memory's and the processor's bounds (`ganglion doctor`):
//   build/release/micro --benchmark_filter='matmul/avx2/Q4_0'
// Weights are larger than caches, and each thread goes through rows of its own, so that bytes per second are
// those of weights from memory; `multiply_adds` counts those of all tokens.
#include <benchmark/benchmark.h>

#include <new>
#include <string>
#include <utility>
#include <vector>

#include "base/units.h"
#include "kernels/kernel_table.h"
#include "kernels/random_blocks.h"
#include "model/kv_cache.h"
#include "platform/memory.h"

namespace {

using ganglion::base::TensorType;
using namespace ganglion::kernels;

constexpr size_t kColumns = 4096;
/// Of products: those of small experts, of a 7B model and of its FFN.
constexpr size_t kProductColumns[] = {768, 2048, kColumns, 14336};
constexpr size_t kBytesPerThread = 64 * ganglion::base::kMiB;
/// Rows that one call is given, as by the tasks of a forward pass.
constexpr size_t kRowsPerCall = 64;

constexpr TensorType kTypes[] = {TensorType::kQ4_0, TensorType::kQ4_1, TensorType::kQ8_0,  TensorType::kQ4_K,
                                 TensorType::kQ5_K, TensorType::kQ6_K, TensorType::kMXFP4, TensorType::kF16};
constexpr size_t kTokens[] = {1, 2, 3, 4, 8, 64};

struct alignas(64) Line {
  uint8_t bytes[64];
};

/// Memory in huge pages, as the engine's arena asks for.
struct Weights {
  explicit Weights(size_t bytes)
      : size(ganglion::base::round_up(bytes, 2 * ganglion::base::kMiB)),
        data(ganglion::platform::reserve_address_space(size)) {
    if (data == nullptr) throw std::bad_alloc();
    ganglion::platform::advise_huge_pages(data, size);
  }
  ~Weights() { ganglion::platform::release_address_space(data, size); }
  Weights(const Weights&) = delete;
  Weights& operator=(const Weights&) = delete;

  size_t size;
  uint8_t* data;
};

void set_rates(benchmark::State& state, double bytes, double multiply_adds) {
  using benchmark::Counter;
  const double n = static_cast<double>(state.iterations());
  state.counters["weights"] = Counter(bytes * n, Counter::kIsRate, Counter::kIs1000);
  state.counters["multiply_adds"] = Counter(multiply_adds * n, Counter::kIsRate, Counter::kIs1000);
}

void matmul(benchmark::State& state, const KernelTable* table, TensorType type, size_t columns,
            size_t tokens) {
  const size_t stride = ganglion::base::row_bytes(type, columns);
  const size_t rows = kBytesPerThread / stride / kRowsPerCall * kRowsPerCall;
  uint64_t seed = 1 + static_cast<uint64_t>(state.thread_index());
  const Weights weights(rows * stride);
  fill_random_blocks(type, rows * columns, &seed, weights.data);
  std::vector<float> x(columns), out(tokens * kRowsPerCall);
  const size_t x_stride = activation_row_bytes(activation_form(type), columns);
  std::vector<Line> activations(tokens * x_stride / sizeof(Line));
  for (size_t t = 0; t < tokens; ++t) {
    fill_random_floats(columns, &seed, x.data());
    table->store_activation(activation_form(type), x.data(), columns, activations[0].bytes + t * x_stride);
  }
  const MatmulFn fn = table->matmul[static_cast<size_t>(type)];
  for (auto _ : state) {
    for (size_t r = 0; r < rows; r += kRowsPerCall) {
      fn({weights.data + r * stride, stride, kRowsPerCall, columns, activations[0].bytes, x_stride, tokens,
          out.data(), kRowsPerCall});
    }
    benchmark::DoNotOptimize(out.data());
  }
  const double elements = static_cast<double>(rows * columns);
  set_rates(state, static_cast<double>(rows * stride), elements * static_cast<double>(tokens));
}

/// Rows of bundles in clusters of 128, ascending with gaps, as sparse passes multiply predicted ones.
void scattered(benchmark::State& state, const KernelTable* table, TensorType type, size_t tokens) {
  constexpr size_t kCluster = 128, kApart = 6;
  const size_t bytes = ganglion::base::row_bytes(type, kColumns);
  const size_t stride = 3 * bytes;
  const size_t rows = 16 * kBytesPerThread / stride;
  uint64_t seed = 1 + static_cast<uint64_t>(state.thread_index());
  const Weights weights(rows * stride);
  fill_random_blocks(type, rows * 3 * kColumns, &seed, weights.data);
  std::vector<float> x(kColumns), out(tokens * kCluster);
  const size_t x_stride = activation_row_bytes(activation_form(type), kColumns);
  std::vector<Line> activations(tokens * x_stride / sizeof(Line));
  for (size_t t = 0; t < tokens; ++t) {
    fill_random_floats(kColumns, &seed, x.data());
    table->store_activation(activation_form(type), x.data(), kColumns, activations[0].bytes + t * x_stride);
  }
  std::vector<const uint8_t*> active;
  for (size_t r = next_random(&seed) % kApart; r < rows; r += 1 + next_random(&seed) % (2 * kApart - 1))
    active.push_back(weights.data + r * stride);
  const MatmulFn fn = table->matmul[static_cast<size_t>(type)];
  for (auto _ : state) {
    for (size_t r = 0; r < active.size(); r += kCluster) {
      fn({.weights = nullptr,
          .weight_stride = 0,
          .rows = std::min(kCluster, active.size() - r),
          .n = kColumns,
          .x = activations[0].bytes,
          .x_stride = x_stride,
          .tokens = tokens,
          .out = out.data(),
          .out_stride = kCluster,
          .scattered = active.data() + r});
    }
    benchmark::DoNotOptimize(out.data());
  }
  const double elements = static_cast<double>(active.size() * kColumns);
  set_rates(state, static_cast<double>(active.size() * bytes), elements * static_cast<double>(tokens));
}

/// Down rows in random order, as sparse passes add scattered ones.
void down_rows(benchmark::State& state, const KernelTable* table, DownType type) {
  const size_t stride = down_row_bytes(type, kColumns);
  const size_t rows = kBytesPerThread / stride;
  uint64_t seed = 1 + static_cast<uint64_t>(state.thread_index());
  const Weights bytes(rows * stride);
  std::vector<float> x(kColumns), out(kColumns);
  for (size_t r = 0; r < rows; ++r) {
    fill_random_floats(kColumns, &seed, x.data());
    quantize_down_row(type, x.data(), kColumns, bytes.data + r * stride);
  }
  std::vector<const uint8_t*> active;
  for (size_t r = 0; r < rows; ++r) active.push_back(bytes.data + r * stride);
  for (size_t r = rows - 1; r > 0; --r) std::swap(active[r], active[next_random(&seed) % (r + 1)]);
  const std::vector<float> weights(active.size(), 0.01F);
  for (auto _ : state) {
    table->down_axpy[static_cast<size_t>(type)](
        {weights.data(), active.data(), active.size(), 0, kColumns, out.data()});
    benchmark::DoNotOptimize(out.data());
  }
  const double n = static_cast<double>(active.size());
  set_rates(state, n * static_cast<double>(stride), n * kColumns);
}

/// Scores and sums of one head over a context of 4,096 positions.
void attention(benchmark::State& state, const KernelTable* table, KvType type, bool scores) {
  constexpr size_t kPositions = 4096, kHead = 128;
  const size_t stride = ganglion::model::kv_row_bytes(type, kHead);
  uint64_t seed = 1;
  std::vector<uint8_t> rows(kPositions * stride);
  std::vector<float> x(kHead), weights(kPositions, 1.0F / kPositions), out(kPositions);
  for (size_t j = 0; j < kPositions; ++j) {
    fill_random_floats(kHead, &seed, x.data());
    table->kv_store[static_cast<size_t>(type)](x.data(), kHead, rows.data() + j * stride);
  }
  for (auto _ : state) {
    if (scores) {
      table->kv_dot[static_cast<size_t>(type)](x.data(), rows.data(), stride, kPositions, kHead, out.data());
    } else {
      table->kv_axpy[static_cast<size_t>(type)](weights.data(), rows.data(), stride, kPositions, kHead,
                                                out.data());
    }
    benchmark::DoNotOptimize(out.data());
  }
  set_rates(state, static_cast<double>(kPositions * stride), kPositions * kHead);
}

void add_benchmarks(const KernelTable* table, int threads) {
  const std::string name = table->name;
  const auto add = [&](const std::string& what, auto fn, auto... args) {
    benchmark::RegisterBenchmark(what.c_str(), fn, table, args...)->Threads(threads)->UseRealTime();
  };
  for (TensorType type : kTypes) {
    for (size_t tokens : kTokens) {
      const std::string of = "/" + name + "/" + std::string(ganglion::base::tensor_type_info(type).name) +
                             "/" + std::to_string(tokens);
      for (size_t columns : kProductColumns)
        add("matmul" + of + "/" + std::to_string(columns), matmul, type, columns, tokens);
      if (tokens <= 4) add("scattered" + of, scattered, type, tokens);
    }
  }
  for (size_t i = 0; i < kDownTypes; ++i) {
    add("down/" + name + "/" + std::string(down_type_names()[i]), down_rows, static_cast<DownType>(i));
  }
  add("attention/" + name + "/F16/scores", attention, KvType::kF16, true);
  add("attention/" + name + "/F16/sums", attention, KvType::kF16, false);
  add("attention/" + name + "/Q8_0/scores", attention, KvType::kQ8_0, true);
  add("attention/" + name + "/Q8_0/sums", attention, KvType::kQ8_0, false);
}

}  // namespace

int main(int argc, char** argv) {
  for (int threads : {1, 2}) {
    for (const KernelTable* table : available_tables()) add_benchmarks(table, threads);
  }
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}

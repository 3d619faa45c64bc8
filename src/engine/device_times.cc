#include "engine/device_times.h"

#include <algorithm>
#include <limits>

#include "accelerator/sample_layer.h"
#include "accelerator/sim_compute.h"
#include "platform/clock.h"

namespace ganglion::engine {

using accelerator::Backend;
using accelerator::BlockRows;
using accelerator::BufferId;
using accelerator::FfnLayer;
using accelerator::SampleBundles;
using base::Result;
using base::Status;

namespace {

// As many bytes as make caches a small part of the matter.
constexpr uint64_t kMeasuredBytes = uint64_t{8} << 20;
constexpr uint64_t kWindowParts = 4;
constexpr uint32_t kLeastBlocks = 2;
constexpr uint32_t kMostBlocks = 16;
constexpr int kTries = 3;
constexpr int64_t kDeadlineNs = 1'000'000'000;

// Nanoseconds of the fastest of a few calls.
Result<double> time_calls(Backend& backend, const accelerator::Submission& submission) {
  double least = std::numeric_limits<double>::max();
  for (int i = 0; i < kTries; ++i) {
    const int64_t start = backend.now_ns();
    GANGLION_ASSIGN_OR_RETURN(const accelerator::Ticket ticket, backend.submit(0, submission));
    const accelerator::Outcome outcome = backend.wait(0, ticket, start + kDeadlineNs);
    if (outcome == accelerator::Outcome::kPending) backend.abandon();
    GANGLION_RETURN_IF_ERROR(accelerator::to_status(outcome));
    least = std::min(least, static_cast<double>(backend.now_ns() - start));
  }
  return least;
}

// Nanoseconds of all blocks on all threads, each having every n-th.
double time_processor(const SampleBundles& bundles, uint32_t tokens, const kernels::KernelTable& kernels,
                      platform::ThreadPool& threads) {
  const FfnLayer& layer = bundles.layer;
  std::vector<std::vector<BlockRows>> shares(static_cast<size_t>(threads.size()));
  for (uint32_t b = 0; b < bundles.blocks; ++b) {
    const uint8_t* at = bundles.bytes.data() + size_t{b} * layer.block_neurons * bundles.stride;
    shares[b % shares.size()].push_back({at, at + bundles.gate_bytes,
                                         at + bundles.gate_bytes + bundles.up_bytes, bundles.stride,
                                         bundles.stride, bundles.stride});
  }
  std::vector<accelerator::FfnCompute> computes;
  for (std::vector<BlockRows>& share : shares) computes.emplace_back(kernels, layer, share, tokens);
  const std::vector<float> x(size_t{tokens} * layer.dim, 0.5F);
  std::vector<float> out(x.size() * shares.size());
  double least = std::numeric_limits<double>::max();
  for (int i = 0; i < kTries; ++i) {
    const int64_t start = platform::now_ns();
    threads.parallel_for(shares.size(), 1, [&](size_t begin, size_t end, int) {
      for (size_t s = begin; s < end; ++s) computes[s].run(x.data(), out.data() + s * x.size());
    });
    least = std::min(least, static_cast<double>(platform::now_ns() - start));
  }
  return least;
}

// Buffers and a layer of a measurement, taken back at its end.
struct Rig {
  explicit Rig(Backend& b, uint32_t number) : backend(b), layer(number) {}
  Rig(const Rig&) = delete;
  Rig& operator=(const Rig&) = delete;
  ~Rig() {
    for (const accelerator::GraphId graph : graphs) backend.release(graph);
    if (uploaded) backend.remove_layer(layer);
    for (const BufferId buffer : buffers) backend.destroy_buffer(buffer);
  }
  Result<BufferId> buffer(uint64_t bytes) {
    GANGLION_ASSIGN_OR_RETURN(
        const BufferId made,
        backend.create_buffer({.bytes = bytes, .window = backend.capabilities().queues[0]}));
    buffers.push_back(made);
    return made;
  }
  Backend& backend;
  uint32_t layer;
  bool uploaded = false;
  std::vector<BufferId> buffers;
  std::vector<accelerator::GraphId> graphs;
};

}  // namespace

Result<DeviceTimes> measure_device(Backend& backend, const FfnLayer& layer, std::span<const uint32_t> buckets,
                                   const kernels::KernelTable& kernels, platform::ThreadPool& threads) {
  const accelerator::Capabilities& device = backend.capabilities();
  const uint64_t block_bytes = layer.block_neurons * (base::row_bytes(layer.format.gate, layer.dim) +
                                                      base::row_bytes(layer.format.up, layer.dim) +
                                                      kernels::down_row_bytes(layer.format.down, layer.dim));
  const uint64_t most_bytes = std::min(kMeasuredBytes, device.windows[device.queues[0]] / kWindowParts);
  const auto blocks =
      static_cast<uint32_t>(std::clamp<uint64_t>(most_bytes / block_bytes, kLeastBlocks, kMostBlocks));
  const SampleBundles bundles =
      accelerator::random_bundles(layer, blocks, 1, backend.capabilities().row_alignment);
  Rig rig(backend, layer.layer);
  GANGLION_ASSIGN_OR_RETURN(const BufferId weights, accelerator::upload(backend, bundles, device.queues[0]));
  rig.uploaded = true;
  rig.buffers.push_back(weights);
  const uint64_t bytes = uint64_t{buckets.back()} * layer.dim * sizeof(float);
  GANGLION_ASSIGN_OR_RETURN(const BufferId x, rig.buffer(bytes));
  GANGLION_ASSIGN_OR_RETURN(const BufferId out, rig.buffer(bytes));
  GANGLION_ASSIGN_OR_RETURN(const std::span<uint8_t> view,
                            backend.begin_access(x, accelerator::Access::kReadWrite));
  std::fill_n(reinterpret_cast<float*>(view.data()), bytes / sizeof(float), 0.5F);
  GANGLION_RETURN_IF_ERROR(backend.end_access(x));
  DeviceTimes times;
  for (const uint32_t bucket : buckets) {
    double ns[2];
    for (size_t i = 0; i < 2; ++i) {
      GANGLION_ASSIGN_OR_RETURN(const accelerator::GraphId graph,
                                backend.prepare(accelerator::FfnShape{
                                    .layer = layer.layer, .bucket = bucket, .blocks = i == 0 ? 1 : blocks}));
      rig.graphs.push_back(graph);
      GANGLION_ASSIGN_OR_RETURN(
          ns[i], time_calls(backend, {.graph = graph, .x = {x, 0}, .out = {out, 0}, .weights = {}}));
      backend.release(graph);
      rig.graphs.pop_back();
    }
    const double block_ns = std::max(0.0, (ns[1] - ns[0]) / (blocks - 1));
    if (times.blocks.empty()) times.hop_ns = std::max(0.0, ns[0] - block_ns);
    times.blocks.push_back({bucket, block_ns, time_processor(bundles, bucket, kernels, threads) / blocks});
  }
  return times;
}

}  // namespace ganglion::engine

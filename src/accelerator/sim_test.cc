// sim: results, sharing, tickets, faults, accesses, allocation.
#include "accelerator/sim.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <new>

#include "accelerator/sample_layer.h"
#include "kernels/random_blocks.h"

namespace {
std::atomic<size_t> g_allocations{0};  // A counting allocator has no other way in.
}

[[gnu::noinline]] void* operator new(size_t bytes) {
  ++g_allocations;
  void* memory = std::malloc(bytes == 0 ? 1 : bytes);
  if (memory == nullptr) std::abort();
  return memory;
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept {
  std::free(memory);
}

namespace ganglion::accelerator {
namespace {

using base::Code;
using base::TensorType;

constexpr int64_t kFar = 1'000'000'000'000;

FfnLayer small_layer(uint32_t number) {
  return {.layer = number,
          .dim = 64,
          .block_neurons = 16,
          .format = {TensorType::kQ4_0, TensorType::kQ4_0, kernels::DownType::kQ6}};
}

struct Rig {
  explicit Rig(SimOptions options = {}) : sim(std::move(options)) {
    bundles = random_bundles(small_layer(0), 3, 5);
    weights = upload(sim, bundles, 0).value();
    in = sim.create_buffer({.bytes = 8 * 64 * 4}).value();
    uint64_t seed = 3;
    x.resize(8 * 64);
    kernels::fill_random_floats(x.size(), &seed, x.data());
    std::memcpy(sim.begin_access(in, Access::kReadWrite).value().data(), x.data(), x.size() * 4);
    EXPECT_TRUE(sim.end_access(in).ok());
    for (BufferId& id : out) id = sim.create_buffer({.bytes = 8 * 64 * 4}).value();
  }
  GraphId graph(uint32_t bucket, uint32_t blocks) { return sim.prepare(FfnShape{0, bucket, blocks}).value(); }
  base::Result<Ticket> submit(uint32_t queue, GraphId graph, size_t to = 0) {
    return sim.submit(queue, {.graph = graph, .x = {in, 0}, .out = {out[to], 0}, .weights = {}});
  }
  std::vector<float> read(size_t from, size_t tokens) {
    std::vector<float> values(tokens * 64);
    std::memcpy(values.data(), sim.begin_access(out[from], Access::kRead).value().data(), values.size() * 4);
    EXPECT_TRUE(sim.end_access(out[from]).ok());
    return values;
  }

  Sim sim;
  SampleBundles bundles;
  BufferId weights{}, in{};
  BufferId out[4] = {};
  std::vector<float> x;
};

TEST(Sim, GraphsOfAllShapesShareTheBlocksAndAreNearExact) {
  Rig rig;
  for (const uint32_t bucket : {1U, 2U, 4U, 8U}) {
    for (uint32_t blocks = 1; blocks <= 3; ++blocks) {
      const Ticket ticket = rig.submit(0, rig.graph(bucket, blocks)).value();
      ASSERT_EQ(rig.sim.wait(0, ticket, kFar), Outcome::kDone);
      const std::vector<float> x(rig.x.begin(), rig.x.begin() + bucket * 64);
      const auto want = ffn_truth(rig.bundles, blocks, x, 0).out;
      const auto got = rig.read(0, bucket);
      double size = 0, error = 0;
      for (size_t i = 0; i < want.size(); ++i) {
        size = std::max(size, std::fabs(want[i]));
        error = std::max(error, std::fabs(static_cast<double>(got[i]) - want[i]));
      }
      EXPECT_LT(error, 0.05 * size) << bucket << " tokens, " << blocks << " blocks";
    }
  }
  EXPECT_EQ(rig.sim.stats().blocks, 3U);
  EXPECT_EQ(rig.sim.stats().prepared, 12U);
}

TEST(Sim, FastKernelsGiveTheBitsOfTheReference) {
  Rig slow;
  SimOptions options;
  options.kernels = kernels::select_table("");
  Rig fast(options);
  for (Rig* rig : {&slow, &fast}) {
    ASSERT_EQ(rig->sim.wait(0, rig->submit(0, rig->graph(4, 3)).value(), kFar), Outcome::kDone);
  }
  EXPECT_EQ(slow.read(0, 4), fast.read(0, 4));
}

TEST(Sim, ShapesOutsideTheVocabularyAreRefused) {
  Rig rig;
  EXPECT_EQ(rig.sim.prepare(FfnShape{0, 3, 1}).status().code(), Code::kUnsupported);
  EXPECT_EQ(rig.sim.prepare(FfnShape{0, 1, 4}).status().code(), Code::kUnsupported);
  EXPECT_EQ(rig.sim.prepare(MatmulShape{TensorType::kQ4_0, 16, 64, 31}).status().code(), Code::kUnsupported);
  FfnLayer odd = small_layer(1);
  odd.dim = 80;
  EXPECT_EQ(rig.sim.define_layer(odd).code(), Code::kUnsupported);
}

TEST(Sim, WindowsAndGraphsAreBounded) {
  SimOptions options;
  options.capabilities.windows = {65536, 65536};
  options.capabilities.graph_limit = 1;
  Rig rig(options);
  EXPECT_EQ(rig.sim.create_buffer({.bytes = 65536}).status().code(), Code::kResources);
  EXPECT_TRUE(rig.sim.create_buffer({.bytes = 65536, .window = 1}).ok());
  const GraphId only = rig.graph(1, 1);
  EXPECT_EQ(rig.sim.prepare(FfnShape{0, 1, 2}).status().code(), Code::kResources);
  rig.sim.release(only);
  EXPECT_TRUE(rig.sim.prepare(FfnShape{0, 1, 2}).ok());
}

TEST(Sim, QueuesCompleteInOrderAndOverEachOther) {
  SimOptions options;
  options.bytes_per_second = 1'000'000'000;
  Rig rig(options);
  const GraphId large = rig.graph(1, 3);
  const GraphId small = rig.graph(1, 1);
  const Ticket first = rig.submit(0, large, 0).value();
  const Ticket second = rig.submit(0, small, 1).value();
  EXPECT_EQ(second, first + 1);
  const Ticket other = rig.submit(2, small, 2).value();
  EXPECT_EQ(rig.sim.wait(2, other, kFar), Outcome::kDone);
  EXPECT_EQ(rig.sim.poll(0, first), Outcome::kPending) << "submitted earlier, ends later";
  EXPECT_EQ(rig.sim.wait(0, second, kFar), Outcome::kDone);
  EXPECT_EQ(rig.sim.poll(0, first), Outcome::kDone);
}

TEST(Sim, AdvanceEndsWhatIsDue) {
  SimOptions options;
  options.latency_ns = 100;
  Rig rig(options);
  const Ticket ticket = rig.submit(0, rig.graph(1, 1)).value();
  rig.sim.advance(99);
  EXPECT_EQ(rig.sim.poll(0, ticket), Outcome::kPending);
  rig.sim.advance(1);
  EXPECT_EQ(rig.sim.poll(0, ticket), Outcome::kDone);
}

TEST(Sim, AFullQueueRefuses) {
  SimOptions options;
  options.latency_ns = 100;
  Rig rig(options);
  const GraphId graph = rig.graph(1, 1);
  for (size_t i = 0; i < 4; ++i) ASSERT_TRUE(rig.submit(0, graph, i).ok());
  EXPECT_EQ(rig.submit(0, graph).status().code(), Code::kResources);
}

TEST(Sim, SubmissionsAllocateNothing) {
  for (const bool virtual_clock : {true, false}) {
    SimOptions options;
    options.virtual_clock = virtual_clock;
    Rig rig(options);
    const GraphId graph = rig.graph(4, 2);
    const size_t before = g_allocations;
    for (int i = 0; i < 20; ++i) {
      const auto ticket = rig.submit(0, graph);
      ASSERT_TRUE(ticket.ok());
      ASSERT_EQ(rig.sim.wait(0, ticket.value(), INT64_MAX), Outcome::kDone);
      ASSERT_TRUE(rig.sim.begin_access(rig.out[0], Access::kRead).ok());
      ASSERT_TRUE(rig.sim.end_access(rig.out[0]).ok());
    }
    EXPECT_EQ(g_allocations, before);
  }
}

TEST(SimFault, AFailureIsOfOneSubmission) {
  Rig rig;
  rig.sim.inject({SimFault::Kind::kFail, 1});
  const GraphId graph = rig.graph(1, 1);
  const Ticket first = rig.submit(0, graph, 0).value();
  const Ticket second = rig.submit(0, graph, 1).value();
  EXPECT_EQ(rig.sim.wait(0, second, kFar), Outcome::kDone);
  EXPECT_EQ(rig.sim.poll(0, first), Outcome::kFailed);
  EXPECT_TRUE(std::isnan(rig.read(0, 1)[0]));
  EXPECT_EQ(to_status(Outcome::kFailed).code(), Code::kDevice);
}

TEST(SimFault, AHangEndsAtTheDeadlineAndTheDeviceIsGivenUp) {
  Rig rig;
  rig.sim.inject({SimFault::Kind::kHang, 1});
  const GraphId graph = rig.graph(1, 1);
  const Ticket ticket = rig.submit(0, graph).value();
  EXPECT_EQ(rig.sim.wait(0, ticket, 5000), Outcome::kPending);
  EXPECT_EQ(rig.sim.now_ns(), 5000);
  rig.sim.abandon();
  EXPECT_EQ(rig.sim.poll(0, ticket), Outcome::kDeviceLost);
  EXPECT_EQ(rig.submit(0, graph).status().code(), Code::kDevice);
}

TEST(SimFault, ALostDeviceEndsEverythingPending) {
  SimOptions options;
  options.latency_ns = 10;
  Rig rig(options);
  rig.sim.inject({SimFault::Kind::kLoseDevice, 1});
  const GraphId graph = rig.graph(1, 1);
  const Ticket first = rig.submit(0, graph, 0).value();
  const Ticket second = rig.submit(0, graph, 1).value();
  const Ticket other = rig.submit(2, graph, 2).value();
  rig.sim.advance(10);
  EXPECT_EQ(rig.sim.poll(0, first), Outcome::kDeviceLost);
  EXPECT_EQ(rig.sim.poll(0, second), Outcome::kDeviceLost);
  EXPECT_NE(rig.sim.poll(2, other), Outcome::kPending);
  EXPECT_TRUE(rig.sim.lost());
  EXPECT_EQ(rig.sim.prepare(FfnShape{0, 1, 1}).status().code(), Code::kDevice);
  EXPECT_EQ(rig.sim.create_buffer({.bytes = 64}).status().code(), Code::kDevice);
  rig.sim.release(graph);
}

TEST(SimDeath, BuffersFaultOutsideAnAccess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        Sim sim({});
        const BufferId id = sim.create_buffer({.bytes = 64}).value();
        volatile uint8_t* at = sim.begin_access(id, Access::kReadWrite).value().data();
        *at = 1;
        (void)sim.end_access(id).ok();
        *at = 2;
      },
      "");
}

TEST(SimDeath, BlocksAreImmutable) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        Rig rig;
        (void)rig.sim.begin_access(rig.weights, Access::kReadWrite).ok();
      },
      "blocks == 0");
}

}  // namespace
}  // namespace ganglion::accelerator

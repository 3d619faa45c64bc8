// OpenCL on the implementations that install anywhere, PoCL and Mesa's rusticl: the self-test of all
// operations, shapes beyond it, tickets, accesses, faults. An implementation that is missing fails the test.
#include "accelerator/opencl.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "accelerator/sample_layer.h"
#include "accelerator/self_test.h"
#include "kernels/random_blocks.h"

namespace ganglion::accelerator {
namespace {

using base::Code;
using base::TensorType;

constexpr int64_t kSecond = 1'000'000'000;

std::unique_ptr<Backend> open_device(const std::string& name, std::vector<OpenclFault> faults = {}) {
  // rusticl offers its processor device only to those who ask; read when the first platform is asked for.
  setenv("RUSTICL_ENABLE", "llvmpipe", 0);
  auto opened = open_opencl({.device = name, .faults = std::move(faults)});
  if (!opened.ok()) {
    ADD_FAILURE() << opened.status().message() << " - install pocl-opencl-icd and mesa-opencl-icd";
    std::exit(1);
  }
  return opened.take();
}

struct Rig {
  static constexpr uint32_t kDim = 64;

  explicit Rig(const std::string& name, std::vector<OpenclFault> faults = {},
               kernels::DownType down = kernels::DownType::kQ6)
      : backend(open_device(name, std::move(faults))) {
    const FfnLayer layer = {
        .layer = 0, .dim = kDim, .block_neurons = 16, .format = {TensorType::kQ4_0, TensorType::kQ4_0, down}};
    bundles = random_bundles(layer, 3, 5);
    weights = upload(*backend, bundles, 0).value();
    in = backend->create_buffer({.bytes = 8 * kDim * 4}).value();
    uint64_t seed = 3;
    x.resize(8 * kDim);
    kernels::fill_random_floats(x.size(), &seed, x.data());
    write(in, x);
    for (BufferId& id : out) id = backend->create_buffer({.bytes = 8 * kDim * 4}).value();
  }
  void write(BufferId to, const std::vector<float>& values) {
    std::memcpy(backend->begin_access(to, Access::kReadWrite).value().data(), values.data(),
                values.size() * 4);
    EXPECT_TRUE(backend->end_access(to).ok());
  }
  GraphId graph(uint32_t bucket, uint32_t blocks) {
    return backend->prepare(FfnShape{0, bucket, blocks}).value();
  }
  base::Result<Ticket> submit(GraphId graph, size_t to = 0) {
    return backend->submit(0, {.graph = graph, .x = {in, 0}, .out = {out[to], 0}, .weights = {}});
  }
  Outcome wait(Ticket ticket) { return backend->wait(0, ticket, backend->now_ns() + 100 * kSecond); }
  std::vector<float> read(size_t from, size_t tokens) {
    std::vector<float> values(tokens * kDim);
    std::memcpy(values.data(), backend->begin_access(out[from], Access::kRead).value().data(),
                values.size() * 4);
    EXPECT_TRUE(backend->end_access(out[from]).ok());
    return values;
  }

  std::unique_ptr<Backend> backend;
  SampleBundles bundles;
  BufferId weights{}, in{};
  BufferId out[4] = {};
  std::vector<float> x;
};

void expect_near(const std::vector<float>& got, const FfnTruth& truth) {
  for (size_t i = 0; i < truth.out.size(); ++i) {
    const double error = std::fabs(static_cast<double>(got[i]) - truth.out[i]);
    ASSERT_LE(error, 1e-6 * truth.sizes[i] + truth.slack[i]) << "element " << i;
  }
}

class Opencl : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Implementation, Opencl, testing::Values("pocl", "rusticl"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(Opencl, TheSelfTestMasksNothing) {
  const auto backend = open_device(GetParam());
  const auto report = self_test(*backend);
  ASSERT_TRUE(report.ok()) << report.status().message();
  EXPECT_EQ(report.value().tested, 5U * 5 * 3 * 4 + 5 * 2);
  for (const MaskedOperation& masked : report.value().masked) ADD_FAILURE() << masked.why;
  EXPECT_GT(report.value().worst, 0.001) << "the tolerance is too wide to find anything";
}

TEST_P(Opencl, GraphsOfAllShapesShareTheBlocks) {
  Rig rig(GetParam());
  for (const uint32_t bucket : {1U, 2U, 4U, 8U}) {
    for (uint32_t blocks = 1; blocks <= 3; ++blocks) {
      ASSERT_EQ(rig.wait(rig.submit(rig.graph(bucket, blocks)).value()), Outcome::kDone);
      const std::vector<float> x(rig.x.begin(), rig.x.begin() + bucket * Rig::kDim);
      expect_near(rig.read(0, bucket), ffn_truth(rig.bundles, blocks, x, 1e-5));
    }
  }
}

// More than a work-group's width and slice, no multiple of either.
TEST_P(Opencl, LargeLayersAreRight) {
  const auto backend = open_device(GetParam());
  const FfnLayer layer = {.layer = 9,
                          .dim = 2080,
                          .block_neurons = 50,
                          .format = {TensorType::kQ8_0, TensorType::kQ8_0, kernels::DownType::kQ4},
                          .activation = Activation::kRelu,
                          .threshold = 1};
  const SampleBundles bundles = random_bundles(layer, 3, 11);
  ASSERT_TRUE(upload(*backend, bundles, 0).ok());
  std::vector<float> x(2080);
  uint64_t seed = 13;
  kernels::fill_random_floats(x.size(), &seed, x.data());
  const BufferId in = backend->create_buffer({.bytes = x.size() * 4}).value();
  const BufferId out = backend->create_buffer({.bytes = x.size() * 4}).value();
  std::memcpy(backend->begin_access(in, Access::kReadWrite).value().data(), x.data(), x.size() * 4);
  ASSERT_TRUE(backend->end_access(in).ok());
  const GraphId graph = backend->prepare(FfnShape{9, 1, 3}).value();
  const Ticket ticket =
      backend->submit(0, {.graph = graph, .x = {in, 0}, .out = {out, 0}, .weights = {}}).value();
  ASSERT_EQ(backend->wait(0, ticket, backend->now_ns() + 100 * kSecond), Outcome::kDone);
  std::vector<float> got(x.size());
  std::memcpy(got.data(), backend->begin_access(out, Access::kRead).value().data(), got.size() * 4);
  expect_near(got, ffn_truth(bundles, 3, x, 1e-5));
}

// Blocks in any order in several buffers, gates, ups and downs apart.
TEST_P(Opencl, BlocksMayLieAnywhere) {
  Rig rig(GetParam());
  FfnLayer layer = rig.bundles.layer;
  layer.layer = 1;
  const BufferId copy = rig.backend->create_buffer({.bytes = rig.bundles.bytes.size() + 64}).value();
  std::memcpy(rig.backend->begin_access(copy, Access::kReadWrite).value().data() + 64,
              rig.bundles.bytes.data(), rig.bundles.bytes.size());
  ASSERT_TRUE(rig.backend->end_access(copy).ok());
  ASSERT_TRUE(rig.backend->define_layer(layer).ok());
  const uint32_t stride = rig.bundles.stride, up = rig.bundles.gate_bytes, down = up + rig.bundles.up_bytes;
  for (const uint64_t block : {2, 0, 1}) {
    const uint64_t at = block * 16 * stride;
    ASSERT_TRUE(rig.backend
                    ->add_block(1, {.gate = {{copy, 64 + at}, stride},
                                    .up = {{rig.weights, at + up}, stride},
                                    .down = {{copy, 64 + at + down}, stride}})
                    .ok());
  }
  ASSERT_EQ(rig.wait(rig.submit(rig.backend->prepare(FfnShape{1, 8, 3}).value()).value()), Outcome::kDone);
  expect_near(rig.read(0, 8), ffn_truth(rig.bundles, 3, rig.x, 1e-5));
}

TEST_P(Opencl, HostMemoryBecomesABufferWithoutACopyWhereItIsShared) {
  Rig rig(GetParam());
  ASSERT_TRUE(rig.backend->capabilities().imports_host_memory);
  constexpr size_t kBytes = 4096;
  std::unique_ptr<uint8_t, decltype(&std::free)> memory(
      static_cast<uint8_t*>(std::aligned_alloc(4096, kBytes)), &std::free);
  std::memcpy(memory.get(), rig.x.data(), rig.x.size() * 4);
  const BufferId in = rig.backend->create_buffer({.bytes = kBytes, .host_memory = memory.get()}).value();
  const GraphId graph = rig.graph(8, 3);
  const auto ticket =
      rig.backend->submit(0, {.graph = graph, .x = {in, 0}, .out = {rig.out[0], 0}, .weights = {}});
  ASSERT_EQ(rig.wait(ticket.value()), Outcome::kDone);
  expect_near(rig.read(0, 8), ffn_truth(rig.bundles, 3, rig.x, 1e-5));
  EXPECT_EQ(rig.backend->begin_access(in, Access::kReadWrite).value().data(), memory.get());
  ASSERT_TRUE(rig.backend->end_access(in).ok());
  rig.backend->destroy_buffer(in);
}

TEST_P(Opencl, ShapesOutsideTheVocabularyAreRefused) {
  Rig rig(GetParam());
  Backend& b = *rig.backend;
  EXPECT_EQ(b.prepare(FfnShape{0, 3, 1}).status().code(), Code::kUnsupported);
  EXPECT_EQ(b.prepare(FfnShape{0, 1, 4}).status().code(), Code::kUnsupported);
  EXPECT_EQ(b.prepare(MatmulShape{TensorType::kQ4_0, 16, 64, 31}).status().code(), Code::kUnsupported);
  EXPECT_EQ(b.prepare(MatmulShape{TensorType::kQ4_K, 16, 64, 32}).status().code(), Code::kUnsupported);
  FfnLayer odd = rig.bundles.layer;
  odd.layer = 1;
  odd.dim = 80;
  EXPECT_EQ(b.define_layer(odd).code(), Code::kUnsupported);
  odd.dim = 64;
  odd.format.up = TensorType::kQ6_K;
  EXPECT_EQ(b.define_layer(odd).code(), Code::kUnsupported);
  EXPECT_EQ(b.add_block(0, {.gate = {{rig.weights, 1}, 64}, .up = {}, .down = {}}).code(),
            Code::kUnsupported);
  EXPECT_EQ(b.create_buffer({.bytes = uint64_t{1} << 60}).status().code(), Code::kResources);
}

TEST_P(Opencl, TicketsCountUpAndEndInOrder) {
  Rig rig(GetParam());
  const GraphId large = rig.graph(8, 3), small = rig.graph(1, 1);
  const Ticket first = rig.submit(large, 0).value();
  const Ticket second = rig.submit(small, 1).value();
  EXPECT_EQ(second, first + 1);
  EXPECT_EQ(rig.wait(second), Outcome::kDone);
  EXPECT_EQ(rig.backend->poll(0, first), Outcome::kDone);
  expect_near(rig.read(0, 8), ffn_truth(rig.bundles, 3, rig.x, 1e-5));
}

TEST_P(Opencl, RepeatedSubmissionsGiveTheSameBits) {
  Rig rig(GetParam());
  const GraphId graph = rig.graph(4, 3);
  ASSERT_EQ(rig.wait(rig.submit(graph, 0).value()), Outcome::kDone);
  const std::vector<float> first = rig.read(0, 4);
  for (int i = 0; i < 50; ++i) ASSERT_EQ(rig.wait(rig.submit(graph, 1).value()), Outcome::kDone);
  EXPECT_EQ(rig.read(1, 4), first);
}

// Weights are written and graphs prepared by others while a thread submits.
TEST_P(Opencl, AccessesAndPreparationRunBesideSubmissions) {
  Rig rig(GetParam());
  const GraphId graph = rig.graph(8, 3);
  const BufferId other = rig.backend->create_buffer({.bytes = 4096}).value();
  std::thread writer([&] {
    for (int i = 0; i < 50; ++i) {
      rig.write(other, rig.x);
      if (i % 10 == 0) rig.backend->release(rig.graph(2, 1));
    }
  });
  for (int i = 0; i < 50; ++i) ASSERT_EQ(rig.wait(rig.submit(graph, 0).value()), Outcome::kDone);
  writer.join();
  expect_near(rig.read(0, 8), ffn_truth(rig.bundles, 3, rig.x, 1e-5));
}

TEST_P(Opencl, AnAccessToAnotherBufferDoesNotWaitForWhatIsPending) {
  Rig rig(GetParam(), {{OpenclFault::Kind::kHang, 1}});
  const Ticket held = rig.submit(rig.graph(1, 1), 0).value();
  EXPECT_TRUE(rig.backend->begin_access(rig.out[1], Access::kReadWrite).ok());
  EXPECT_TRUE(rig.backend->end_access(rig.out[1]).ok());
  (void)rig.graph(2, 1);
  EXPECT_EQ(rig.backend->poll(0, held), Outcome::kPending);
}

TEST_P(Opencl, AFullQueueRefuses) {
  Rig rig(GetParam(), {{OpenclFault::Kind::kHang, 1}});
  const GraphId graph = rig.graph(1, 1);
  const uint32_t depth = rig.backend->capabilities().queue_depth;
  for (size_t i = 0; i < depth; ++i) ASSERT_TRUE(rig.submit(graph, 0).ok());
  EXPECT_EQ(rig.submit(graph).status().code(), Code::kResources);
}

TEST_P(Opencl, AHangEndsAtTheDeadlineAndTheDeviceIsGivenUp) {
  Rig rig(GetParam(), {{OpenclFault::Kind::kHang, 1}});
  const GraphId graph = rig.graph(1, 1);
  const Ticket held = rig.submit(graph, 0).value();
  const Ticket next = rig.submit(graph, 1).value();
  EXPECT_EQ(rig.backend->wait(0, held, rig.backend->now_ns() + 20'000'000), Outcome::kPending);
  rig.backend->abandon();
  EXPECT_TRUE(rig.backend->lost());
  EXPECT_EQ(rig.wait(held), Outcome::kDeviceLost);
  EXPECT_EQ(rig.backend->poll(0, next), Outcome::kDeviceLost);
  EXPECT_EQ(rig.submit(graph).status().code(), Code::kDevice);
  EXPECT_EQ(rig.backend->prepare(FfnShape{0, 1, 1}).status().code(), Code::kDevice);
  EXPECT_EQ(rig.backend->create_buffer({.bytes = 64}).status().code(), Code::kDevice);
  EXPECT_EQ(rig.backend->begin_access(rig.in, Access::kRead).status().code(), Code::kDevice);
  rig.backend->release(graph);
}

TEST_P(Opencl, AbandoningWakesAThreadThatWaits) {
  Rig rig(GetParam(), {{OpenclFault::Kind::kHang, 1}});
  const Ticket held = rig.submit(rig.graph(1, 1)).value();
  std::thread other([&] { rig.backend->abandon(); });
  EXPECT_EQ(rig.backend->wait(0, held, INT64_MAX), Outcome::kDeviceLost);
  other.join();
}

TEST_P(Opencl, ARefusedSubmissionLosesTheDevice) {
  Rig rig(GetParam(), {{OpenclFault::Kind::kRefused, 2}});
  const GraphId graph = rig.graph(1, 1);
  ASSERT_EQ(rig.wait(rig.submit(graph, 0).value()), Outcome::kDone);
  const auto refused = rig.submit(graph, 1);
  EXPECT_EQ(refused.status().code(), Code::kDevice);
  EXPECT_NE(refused.status().message().find("out of resources"), std::string::npos);
  EXPECT_TRUE(rig.backend->lost());
  EXPECT_EQ(rig.backend->begin_access(rig.out[0], Access::kRead).status().code(), Code::kDevice);
}

TEST_P(Opencl, AnErrorOfAKernelEndsEverythingPending) {
  Rig rig(GetParam(), {{OpenclFault::Kind::kError, 2}});
  const GraphId graph = rig.graph(1, 1);
  ASSERT_EQ(rig.wait(rig.submit(graph, 0).value()), Outcome::kDone);
  const auto failing = rig.submit(graph, 1);
  ASSERT_TRUE(failing.ok());
  EXPECT_EQ(rig.wait(failing.value()), Outcome::kDeviceLost);
  EXPECT_TRUE(rig.backend->lost());
  EXPECT_EQ(rig.submit(graph, 2).status().code(), Code::kDevice);
}

TEST_P(Opencl, TheSelfTestReportsALostDevice) {
  const auto backend = open_device(GetParam(), {{OpenclFault::Kind::kError, 2}});
  const Operation matmul = {.kind = Operation::Kind::kMatmul, .type = TensorType::kF32, .bucket = 32};
  const auto report = self_test(*backend, {.only = {matmul, matmul, matmul}});
  ASSERT_FALSE(report.ok());
  EXPECT_EQ(report.status().code(), Code::kDevice);
}

}  // namespace
}  // namespace ganglion::accelerator

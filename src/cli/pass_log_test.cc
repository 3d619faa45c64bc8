#include "cli/pass_log.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <new>

static size_t g_allocations = 0;

[[gnu::noinline]] void* operator new(size_t bytes) {
  ++g_allocations;
  void* memory = std::malloc(bytes);
  if (memory == nullptr) std::abort();
  return memory;
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept {
  std::free(memory);
}

namespace ganglion::cli {
namespace {

TEST(RoutingRecorder, WritesEveryLineThroughOneBufferWithoutAllocating) {
  const std::string path = ::testing::TempDir() + "ganglion_routing_" + std::to_string(::getpid());
  Result<std::unique_ptr<RoutingRecorder>> recorder = RoutingRecorder::create(path, "model");
  ASSERT_TRUE(recorder.ok());
  const std::vector<uint32_t> experts = {3, 127, 4000000000U};
  constexpr size_t kPasses = 50;
  constexpr size_t kRows = 100;
  constexpr size_t kLayers = 20;
  const size_t before = g_allocations;
  for (size_t pass = 0; pass < kPasses; ++pass) {
    recorder.value()->begin_pass(pass * kRows);
    for (size_t layer = 0; layer < kLayers; ++layer) {
      for (size_t row = 0; row < kRows; ++row) recorder.value()->routed(row, layer, experts);
    }
  }
  EXPECT_EQ(g_allocations, before);
  ASSERT_TRUE(recorder.value()->finish().ok());
  std::ifstream in(path);
  std::string line;
  ASSERT_TRUE(std::getline(in, line));
  EXPECT_EQ(line, "# ganglion routing 1: pass position layer expert ...; model");
  for (size_t i = 0; i < kPasses * kLayers * kRows; ++i) {
    ASSERT_TRUE(std::getline(in, line)) << i;
    const size_t pass = i / (kLayers * kRows);
    ASSERT_EQ(line, std::to_string(pass) + " " + std::to_string(pass * kRows + i % kRows) + " " +
                        std::to_string(i / kRows % kLayers) + " 3 127 4000000000");
  }
  EXPECT_FALSE(std::getline(in, line));
  std::remove(path.c_str());
}

TEST(RoutingRecorder, AFullDiskIsAnError) {
  Result<std::unique_ptr<RoutingRecorder>> recorder = RoutingRecorder::create("/dev/full", "model");
  if (!recorder.ok()) GTEST_SKIP() << "no /dev/full here";
  const std::vector<uint32_t> experts(8, 100000);
  recorder.value()->begin_pass(0);
  for (size_t i = 0; i < 100000; ++i) recorder.value()->routed(i, 0, experts);
  EXPECT_EQ(recorder.value()->finish().code(), Code::kIo);
}

TEST(StatsLog, LinesAreDifferences) {
  const EngineStats from = {.device_bytes = 1000, .expert_hits = 1, .io_wait_ns = 500000, .pass_ns = 1000000};
  EngineStats to = from;
  to.device_bytes += 4096;
  to.cached_bytes = 7;
  to.reads = 2;
  to.expert_hits += 3;
  to.expert_misses = 1;
  to.ahead_reads = 5;
  to.ahead_used = 4;
  to.ahead_wasted = 1;
  to.io_wait_ns += 2000000;
  to.pass_ns += 5000000;
  EXPECT_EQ(StatsLog::line("answer", 1, from, to), "answer,1,5.000,4096,7,2,2.000,3.000,3,1,0.7500,5,4,1\n");
  EXPECT_EQ(StatsLog::line("prompt", 9, from, from), "prompt,9,0.000,0,0,0,0.000,0.000,0,0,,0,0,0\n");
}

}  // namespace
}  // namespace ganglion::cli

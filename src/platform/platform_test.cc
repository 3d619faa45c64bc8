#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <numeric>

#include "platform/cpu.h"
#include "platform/file.h"
#include "platform/memory.h"
#include "platform/threads.h"

namespace ganglion::platform {
namespace {

namespace fs = std::filesystem;

class PlatformTest : public ::testing::Test {
 protected:
  void SetUp() override {
    dir_ = fs::temp_directory_path() / ("ganglion_platform_" + std::to_string(::getpid()));
    fs::create_directories(dir_);
  }
  void TearDown() override { fs::remove_all(dir_); }
  void put(const std::string& name, const std::string& text) {
    fs::create_directories((dir_ / name).parent_path());
    std::ofstream(dir_ / name) << text;
  }
  std::string at(const std::string& name) { return (dir_ / name).string(); }
  fs::path dir_;
};

TEST_F(PlatformTest, ReadPastTheEndSaysTruncated) {
  put("f", "hello");
  auto file = File::open(at("f"));
  ASSERT_TRUE(file.ok());
  EXPECT_EQ(file.value().size(), 5U);
  uint8_t bytes[8];
  EXPECT_TRUE(file.value().read_exact(1, std::span(bytes, 4)).ok());
  const base::Status status = file.value().read_exact(1, std::span(bytes, 8));
  EXPECT_EQ(status.code(), base::Code::kModelFile);
  EXPECT_NE(status.message().find("truncated"), std::string::npos);
}

TEST_F(PlatformTest, OpenNamesWhatIsMissing) {
  const auto result = File::open(at("nothing"));
  EXPECT_EQ(result.status().code(), base::Code::kNotFound);
  EXPECT_NE(result.status().message().find("nothing"), std::string::npos);
  EXPECT_EQ(File::open(dir_.string()).status().code(), base::Code::kIo);
}

TEST_F(PlatformTest, AtomicWriteLeavesNoTemporaryFile) {
  const std::string text = "abc";
  ASSERT_TRUE(
      write_file_atomically(at("out"), std::span(reinterpret_cast<const uint8_t*>(text.data()), 3)).ok());
  EXPECT_EQ(read_text_file(at("out"), 100).value(), "abc");
  EXPECT_EQ(list_directory(dir_.string()).value().size(), 3U);  // . .. out
  EXPECT_FALSE(write_file_atomically(at("no/such/dir"), {}).ok());
  EXPECT_EQ(read_text_file(at("out"), 2).status().code(), base::Code::kInvalidArgument);
}

TEST_F(PlatformTest, TightestCgroupV2LimitOnTheWayUpCounts) {
  put("proc/meminfo", "MemTotal: 100 kB\nMemAvailable:   2048 kB\n");
  put("proc/self/cgroup", "0::/a/b\n");
  put("sys/fs/cgroup/a/b/memory.max", "max\n");
  put("sys/fs/cgroup/a/memory.max", "1048576\n");
  put("sys/fs/cgroup/a/memory.current", "4096\n");
  const MemoryLimits limits = read_memory_limits(dir_.string());
  EXPECT_EQ(limits.available_bytes, 2048U * 1024);
  EXPECT_EQ(limits.cgroup_limit_bytes, 1048576U);
  EXPECT_EQ(limits.cgroup_usage_bytes, 4096U);
}

TEST_F(PlatformTest, CgroupV1LimitIsReadAndItsUnlimitedNumberIsNoLimit) {
  put("proc/self/cgroup", "5:cpu:/\n9:memory:/x\n");
  put("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  put("sys/fs/cgroup/memory/x/memory.limit_in_bytes", "777\n");
  EXPECT_EQ(read_memory_limits(dir_.string()).cgroup_limit_bytes, 777U);
  put("sys/fs/cgroup/memory/x/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_EQ(read_memory_limits(dir_.string()).cgroup_limit_bytes, kNoLimit);
}

TEST(Memory, ReservedAddressSpaceTakesPagesOnlyWhenTouched) {
  constexpr size_t kBytes = size_t{64} << 20;
  uint8_t* at = reserve_address_space(kBytes);
  ASSERT_NE(at, nullptr);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(at) % (size_t{2} << 20), 0U);
  at[kBytes - 1] = 1;
  discard_pages(at, kBytes);
  EXPECT_EQ(at[kBytes - 1], 0);
  release_address_space(at, kBytes);
  EXPECT_GT(read_process_memory().peak_bytes, 0U);
}

TEST(ThreadPool, CoversEveryIndexOnceForAnyThreadCount) {
  for (int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    for (int round = 0; round < 200; ++round) {
      std::vector<int> hits(1000, 0);
      size_t most = 7;
      const auto hit = [&](size_t begin, size_t end, int thread) {
        ASSERT_LT(thread, threads);
        ASSERT_LE(end - begin, threads > 1 ? most : hits.size());
        for (size_t i = begin; i < end; ++i) ++hits[i];
      };
      if (round % 2 == 0) {
        pool.parallel_for(hits.size(), most, hit);
      } else {
        most = 300;
        pool.parallel_for_runs(hits.size(), most, hit);
      }
      EXPECT_EQ(std::accumulate(hits.begin(), hits.end(), 0), 1000);
      EXPECT_EQ(*std::min_element(hits.begin(), hits.end()), 1);
    }
  }
}

TEST(Cpu, HasAtLeastOneThread) {
  EXPECT_GE(default_thread_count(), 1);
  EXPECT_FALSE(cpu_model_name().empty());
}

TEST_F(PlatformTest, FilesSayWhatLiesInThePageCache) {
  put("cached", std::string(size_t{64} << 10, 'x'));
  fs::resize_file(at("cached"), size_t{1} << 20);  // A hole that nobody has read.
  const auto file = File::open(at("cached"));
  ASSERT_TRUE(file.ok());
  EXPECT_TRUE(file.value().is_cached(0, size_t{64} << 10));
  EXPECT_FALSE(file.value().is_cached(size_t{512} << 10, 1));
  EXPECT_FALSE(file.value().is_cached(0, size_t{1} << 20));
}

}  // namespace
}  // namespace ganglion::platform

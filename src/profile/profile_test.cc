#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "ganglion/doctor.h"
#include "platform/memory.h"
#include "profile/memory_bandwidth.h"

namespace ganglion {
namespace {

TEST(DeviceIdentity, IsTheSameForFilesOfOneFolderAndNamesTheFileSystem) {
  const std::string folder = ::testing::TempDir();
  const std::string identity = device_identity(folder);
  EXPECT_NE(identity.find(':'), std::string::npos) << identity;
  const std::string path = folder + "ganglion_identity_" + std::to_string(::getpid());
  std::ofstream(path) << "x";
  EXPECT_EQ(device_identity(path), identity);
  std::remove(path.c_str());
  EXPECT_EQ(device_identity(path), "unknown");
  EXPECT_NE(device_identity("/proc"), identity);
}

TEST(MemoryReader, GivesAllItsMemoryBack) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "the thread sanitizer's own memory is counted";
#endif
  const uint64_t before = platform::read_process_memory().resident_bytes;
  // Of falling sizes: an allocator keeps the second one once it has seen the first.
  for (const size_t mebibytes : {26U, 13U}) {
    profile::MemoryReader reader(2, size_t{mebibytes} << 20);
    EXPECT_EQ(reader.read(size_t{mebibytes} << 20), size_t{mebibytes} << 20);
  }
  EXPECT_LT(platform::read_process_memory().resident_bytes, before + (uint64_t{4} << 20));
}

TEST(Doctor, QuickMeasuresEverythingThatAPredictionNeeds) {
  const std::string path = ::testing::TempDir() + "ganglion_doctor_" + std::to_string(::getpid());
  std::ofstream(path, std::ios::binary) << std::string(size_t{2} << 20, 'x');
  const Result<DoctorReport> report = examine_machine({.disk_path = path, .quick = true});
  std::remove(path.c_str());
  ASSERT_TRUE(report.ok()) << report.status().message();
  ASSERT_FALSE(report.value().disk.empty());
  ASSERT_EQ(report.value().overlap.size(), 2U);
  for (const OverlapSample& both : report.value().overlap) {
    EXPECT_GT(both.memory_bytes_per_s, 0);
    EXPECT_GT(both.disk.bytes_per_s, 0);
  }
  for (const DiskSample& sample : report.value().disk) {
    EXPECT_GT(sample.bytes_per_s, 0);
    EXPECT_GT(sample.cpu_s_per_read, 0);
  }
  PlanSummary plan;
  plan.threads = report.value().threads;
  plan.isa = report.value().kernel_tables.front();
  plan.kv_type = "f16";
  for (const char* type : {"Q4_0", "Q8_0", "Q4_K"}) {
    plan.weight_type = type;
    const auto rates = rates_from(report.value(), plan);
    ASSERT_TRUE(rates.ok()) << type;
    EXPECT_GE(rates.value().block_latency_s, 0);
    EXPECT_GT(rates.value().expert_multiply_adds_per_s, 0);
    for (const double overlap : {rates.value().overlap, rates.value().overlap_random}) {
      EXPECT_GE(overlap, 1);
      EXPECT_LE(overlap, 2);
    }
  }
}

TEST(Predict, GeneratedTokensOfAPackCostWhatTheyTouchAndTheReadsOfNeurons) {
  MachineRates rates;
  rates.threads = 2;
  rates.memory_bytes_per_s = 1e10;
  rates.disk_bytes_per_s = 2e9;
  rates.random_reads_per_s = 50'000;
  rates.cpu_s_per_read = 1e-5;
  rates.multiply_adds_per_s = 1e11;
  rates.attention_multiply_adds_per_s = 1e10;
  PlanSummary plan;
  plan.chunk = 64;
  plan.resident_weight_bytes = 1'000'000'000;
  plan.streamed_bytes_per_token = 4'000'000'000;
  plan.multiply_adds_per_token = 7'000'000'000;
  EXPECT_NEAR(predict(plan, rates).decode_tokens_per_s, 0.5, 1e-9);
  // 0.1 s of memory and 2,000 reads of 10 us of two processors, beside 0.04 s of the disk.
  plan.sparse_bytes_per_token = 1'000'000'000;
  plan.neurons_read_per_token = 2000;
  plan.neuron_read_bytes = 8192;
  EXPECT_NEAR(predict(plan, rates).decode_tokens_per_s, 1 / 0.11, 1e-6);
  EXPECT_EQ(predict(plan, rates).decode_limit, "memory bandwidth");
  plan.neurons_read_per_token = 20'000;
  EXPECT_NEAR(predict(plan, rates).decode_tokens_per_s, 2.5, 1e-6);
  EXPECT_EQ(predict(plan, rates).decode_limit, "disk");
  // 0.1 s of memory, 0.4 s of the disk: where one slows down the other they add up.
  rates.overlap_random = 1;
  EXPECT_NEAR(predict(plan, rates).decode_tokens_per_s, 1 / 0.5, 1e-6);
  rates.overlap_random = 1.1;
  EXPECT_NEAR(predict(plan, rates).decode_tokens_per_s, 2.2, 1e-6);
}

TEST(Predict, PromptsCostProductsAndAttentionOverHalfTheirChunk) {
  MachineRates rates;
  rates.threads = 2;
  rates.memory_bytes_per_s = 1e10;
  rates.disk_bytes_per_s = 1e9;
  rates.multiply_adds_per_s = 1e11;
  rates.attention_multiply_adds_per_s = 1e10;
  PlanSummary plan;
  plan.chunk = 100;
  plan.resident_weight_bytes = 1'000'000'000;
  plan.multiply_adds_per_token = 1'000'000'000;
  plan.attention_multiply_adds = 1'000'000;
  // 10 ms of products, 50 earlier positions of 0.1 ms each.
  EXPECT_NEAR(predict(plan, rates).prefill_tokens_per_s, 1 / 0.015, 1e-6);
  EXPECT_EQ(predict(plan, rates).prefill_limit, "compute");
  // Read once a chunk, 3 s.
  plan.streamed_bytes_per_token = 3'000'000'000;
  EXPECT_NEAR(predict(plan, rates).prefill_tokens_per_s, 100 / 3.0, 1e-6);
  EXPECT_EQ(predict(plan, rates).prefill_limit, "disk");
}

TEST(Predict, ExpertsAreReadBesideTheirOwnComputingAlone) {
  MachineRates rates;
  rates.threads = 2;
  rates.memory_bytes_per_s = 1e10;
  rates.disk_bytes_per_s = 1e9;
  rates.block_latency_s = 1e-3;
  rates.multiply_adds_per_s = 1e11;
  rates.expert_multiply_adds_per_s = 5e10;
  rates.attention_multiply_adds_per_s = 1e10;
  PlanSummary plan;
  plan.chunk = 512;
  plan.resident_weight_bytes = 1'000'000'000;
  plan.expert_bytes = 8'000'000'000;
  plan.expert_bytes_per_token = 2'000'000'000;  // A quarter: used evenly.
  plan.expert_cache_bytes = 6'000'000'000;
  plan.expert_layers = 10;
  plan.multiply_adds_per_token = 3'000'000'000;
  plan.expert_multiply_adds_per_token = 2'000'000'000;
  // 0.1 s of dense weights; 0.5 GB read beside 0.2 s of experts; 10 first blocks.
  EXPECT_NEAR(predict(plan, rates).decode_tokens_per_s, 1 / 0.61, 1e-9);
  EXPECT_EQ(predict(plan, rates).decode_limit, "disk");
  // A quarter of 512 rows an expert: as in a dense model. Of 16 rows: slower.
  EXPECT_NEAR(predict(plan, rates).prefill_tokens_per_s, 1 / 0.03, 1e-6);
  plan.chunk = 64;
  rates.disk_bytes_per_s = 1e12;
  EXPECT_NEAR(predict(plan, rates).prefill_tokens_per_s, 1 / 0.05, 1e-6);
  // In memory nothing is waited for.
  plan.expert_cache_bytes = 0;
  plan.resident_weight_bytes += plan.expert_bytes;
  EXPECT_NEAR(predict(plan, rates).decode_tokens_per_s, 1 / 0.3, 1e-9);
}

}  // namespace
}  // namespace ganglion

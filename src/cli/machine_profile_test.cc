#include "cli/machine_profile.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <ctime>
#include <filesystem>
#include <fstream>

namespace ganglion::cli {
namespace {

constexpr int64_t kHour = 3600;

class MachineProfile : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = ::testing::TempDir() + "ganglion_profile_" + std::to_string(::getpid());
    std::filesystem::remove_all(folder_);
    report_.cpu = "a processor";
    report_.device = "8:1 ext4, model, serial \"quoted\"";
    report_.threads = 2;
    report_.memory = {{1, 1e10}, {2, 2e10}};
    report_.disk = {
        {4096, 32, false, 1e8, 2e-6}, {16384, 32, false, 8.192e8, 7e-6}, {524288, 4, true, 1.5e9, 3e-5}};
    report_.kernels = {{"Q4_0", "avx2", 1, 2e10}, {"Q4_0", "avx2", 32, 4e10}, {"Q4_0", "avx2", 512, 5e10}};
    report_.attention = {{"f16", "avx2", 1e10}};
    report_.measured_unix_s = static_cast<int64_t>(std::time(nullptr));
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  Result<DoctorReport> load() { return load_profile(folder_, report_.device, report_.cpu, kHour); }
  std::string only_file() {
    std::string path;
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
      EXPECT_EQ(path, "") << "a second file: " << entry.path();
      path = entry.path();
    }
    return path;
  }

  std::string folder_;
  DoctorReport report_;
};

TEST_F(MachineProfile, IsWrittenWholeAndReadBack) {
  EXPECT_EQ(load().status().code(), Code::kNotFound);
  ASSERT_TRUE(save_profile(folder_, report_).ok());
  ASSERT_TRUE(save_profile(folder_, report_).ok());
  EXPECT_NE(only_file(), "") << "no temporary file is left";
  const Result<DoctorReport> read = load();
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(profile_json(read.value()), profile_json(report_));
}

TEST_F(MachineProfile, OfAnotherDeviceProcessorOrTimeIsIgnored) {
  ASSERT_TRUE(save_profile(folder_, report_).ok());
  EXPECT_EQ(load_profile(folder_, "8:2 ext4", report_.cpu, kHour).status().code(), Code::kNotFound);
  EXPECT_EQ(load_profile(folder_, report_.device, "another", kHour).status().code(), Code::kNotFound);
  // A file that has got the name of another device's.
  DoctorReport other = report_;
  other.device = "259:0 xfs";
  const std::string path = only_file();
  std::ofstream(path, std::ios::trunc) << profile_json(other);
  EXPECT_EQ(load().status().code(), Code::kNotFound);
  for (const int64_t off : {-kHour - 5, kHour}) {
    other = report_;
    other.measured_unix_s += off;
    ASSERT_TRUE(save_profile(folder_, other).ok());
    EXPECT_EQ(load().status().code(), Code::kNotFound) << off;
  }
}

TEST_F(MachineProfile, DamageIsNamed) {
  ASSERT_TRUE(save_profile(folder_, report_).ok());
  const std::string path = only_file();
  const std::string whole = profile_json(report_);
  for (const std::string& text : {std::string(), whole.substr(0, whole.size() / 2), std::string("[]"),
                                  std::string("{\"format\": 2}"), std::string("{\"format\": 1}")}) {
    std::ofstream(path, std::ios::trunc) << text;
    const Result<DoctorReport> read = load();
    EXPECT_EQ(read.status().code(), Code::kInvalidArgument) << text;
    EXPECT_NE(read.status().message().find(path), std::string::npos);
  }
}

TEST_F(MachineProfile, WhatCannotBeWrittenLeavesNothing) {
  std::ofstream(folder_) << "a file where the folder should be";
  EXPECT_EQ(save_profile(folder_, report_).code(), Code::kIo);
}

TEST_F(MachineProfile, GivesThePlansRatesOrSaysThatItCannot) {
  PlanSummary plan;
  plan.threads = 2;
  plan.isa = "avx2";
  plan.weight_type = "Q4_0";
  plan.kv_type = "f16";
  const Result<MachineRates> rates = rates_from(report_, plan);
  ASSERT_TRUE(rates.ok());
  EXPECT_EQ(rates.value().memory_bytes_per_s, 2e10);
  EXPECT_EQ(rates.value().disk_bytes_per_s, 1.5e9);
  EXPECT_EQ(rates.value().random_reads_per_s, 50'000);
  EXPECT_EQ(rates.value().cpu_s_per_read, 7e-6);
  EXPECT_EQ(rates.value().multiply_adds_per_s, 1e11);
  EXPECT_EQ(rates.value().expert_multiply_adds_per_s, 8e10);
  EXPECT_EQ(rates.value().attention_multiply_adds_per_s, 2e10);
  plan.threads = 3;
  EXPECT_EQ(rates_from(report_, plan).status().code(), Code::kNotFound);
  plan.threads = 2;
  plan.weight_type = "IQ2_XS";
  EXPECT_EQ(rates_from(report_, plan).status().code(), Code::kNotFound);
  plan.weight_type = "Q4_0";
  plan.kv_type = "f32";
  EXPECT_EQ(rates_from(report_, plan).status().code(), Code::kNotFound);
}

}  // namespace
}  // namespace ganglion::cli

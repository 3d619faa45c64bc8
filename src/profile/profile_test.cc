#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "ganglion/doctor.h"

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

TEST(Doctor, QuickMeasuresEverythingThatAPredictionNeeds) {
  const std::string path = ::testing::TempDir() + "ganglion_doctor_" + std::to_string(::getpid());
  std::ofstream(path, std::ios::binary) << std::string(size_t{2} << 20, 'x');
  const Result<DoctorReport> report = examine_machine({.disk_path = path, .quick = true});
  std::remove(path.c_str());
  ASSERT_TRUE(report.ok()) << report.status().message();
  ASSERT_FALSE(report.value().disk.empty());
  for (const DiskSample& sample : report.value().disk) {
    EXPECT_GT(sample.bytes_per_s, 0);
    EXPECT_GT(sample.cpu_s_per_read, 0);
  }
  PlanSummary plan;
  plan.threads = report.value().threads;
  plan.isa = report.value().kernel_tables.front();
  for (const char* type : {"Q4_0", "Q8_0", "Q4_K"}) {
    plan.weight_type = type;
    EXPECT_TRUE(rates_from(report.value(), plan).ok()) << type;
  }
}

}  // namespace
}  // namespace ganglion

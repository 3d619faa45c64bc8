// Devices by name.
#include "accelerator/open_backend.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace ganglion::accelerator {
namespace {

TEST(OpenBackend, EveryListedDeviceOpens) {
  const std::vector<std::string> names = list_devices();
  EXPECT_NE(std::find(names.begin(), names.end(), "sim"), names.end());
  for (const std::string& name : names) {
    const auto backend = open_backend(name);
    ASSERT_TRUE(backend.ok()) << name << ": " << backend.status().message();
    EXPECT_EQ(backend.value()->capabilities().name.find(name), 0U) << backend.value()->capabilities().name;
    EXPECT_FALSE(backend.value()->lost());
  }
}

TEST(OpenBackend, AnUnknownDeviceIsRefusedWithALineThatNamesThoseThatThereAre) {
  for (const std::string name : {"", "simulator", "sim:1", "npu", "openclx", "opencl:no such device"}) {
    const auto backend = open_backend(name);
    ASSERT_FALSE(backend.ok()) << name;
    EXPECT_EQ(backend.status().code(), base::Code::kInvalidArgument);
    const std::string& message = backend.status().message();
    EXPECT_NE(message.find("'" + name + "'"), std::string::npos) << message;
    EXPECT_EQ(message.find('\n'), std::string::npos);
    for (const std::string& there : list_devices())
      EXPECT_NE(message.find(there), std::string::npos) << message;
  }
}

}  // namespace
}  // namespace ganglion::accelerator

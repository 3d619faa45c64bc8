// Finds OpenCL devices and says what they can do.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "accelerator/backend.h"
#include "accelerator/opencl_api.h"

namespace ganglion::accelerator {

struct OpenclDevice {
  cl_platform_id platform = nullptr;
  cl_device_id id = nullptr;
  std::string label;           ///< Short: "pocl", "rusticl", "nvidia"; a second device's own name.
  std::string name;            ///< Of the device, as the driver has it.
  std::string search;          ///< All that a user may call it by, lower-case.
  std::string driver;          ///< Version.
  bool shares_memory = false;  ///< With the processor.
};

/// Those that can be used: little-endian, with a compiler and enough local memory.
std::vector<OpenclDevice> find_opencl_devices();
/// Index of the first that matches, or -1.
int match_opencl_device(const std::vector<OpenclDevice>& devices, std::string_view text);

Capabilities opencl_capabilities(const OpenclDevice& device);

}  // namespace ganglion::accelerator

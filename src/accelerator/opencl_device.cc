#include "accelerator/opencl_device.h"

#include <algorithm>
#include <set>

#include "accelerator/opencl_source.h"

namespace ganglion::accelerator {

using base::TensorType;

namespace {

constexpr cl_ulong kLocalBytes = 16384;

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
  return out;
}

/// Of clGetPlatformInfo or clGetDeviceInfo.
template <typename Get, typename Of, typename What>
std::string info_text(Get get, Of of, What what) {
  size_t bytes = 0;
  if (get(of, what, 0, nullptr, &bytes) != CL_SUCCESS) return {};
  std::string text(bytes, '\0');
  get(of, what, bytes, text.data(), nullptr);
  return text.c_str();
}

std::string platform_text(cl_platform_id platform, cl_platform_info what) {
  return info_text(clGetPlatformInfo, platform, what);
}

std::string device_text(cl_device_id device, cl_device_info what) {
  return info_text(clGetDeviceInfo, device, what);
}

template <typename T>
T device_number(cl_device_id device, cl_device_info what) {
  T value = 0;
  clGetDeviceInfo(device, what, sizeof(value), &value, nullptr);
  return value;
}

bool usable(cl_device_id device) {
  return device_number<cl_bool>(device, CL_DEVICE_AVAILABLE) == CL_TRUE &&
         device_number<cl_bool>(device, CL_DEVICE_COMPILER_AVAILABLE) == CL_TRUE &&
         device_number<cl_bool>(device, CL_DEVICE_ENDIAN_LITTLE) == CL_TRUE &&
         device_number<cl_ulong>(device, CL_DEVICE_LOCAL_MEM_SIZE) >= kLocalBytes &&
         device_number<size_t>(device, CL_DEVICE_MAX_WORK_GROUP_SIZE) >= OpenclSizes::kTileRows;
}

/// The first word of the platform's name; PoCL's does not contain what everybody calls it.
std::string short_name(const std::string& platform) {
  if (platform == "Portable Computing Language") return "pocl";
  return lower(platform.substr(0, platform.find(' ')));
}

}  // namespace

std::vector<OpenclDevice> find_opencl_devices() {
  cl_platform_id platforms[32];
  cl_uint platform_count = 0;
  if (clGetPlatformIDs(32, platforms, &platform_count) != CL_SUCCESS) return {};
  std::vector<OpenclDevice> found;
  std::set<std::string> labels;
  for (cl_uint p = 0; p < std::min<cl_uint>(platform_count, 32); ++p) {
    cl_device_id ids[32];
    cl_uint count = 0;
    if (clGetDeviceIDs(platforms[p], CL_DEVICE_TYPE_ALL, 32, ids, &count) != CL_SUCCESS) continue;
    const std::string platform = platform_text(platforms[p], CL_PLATFORM_NAME);
    for (cl_uint d = 0; d < std::min<cl_uint>(count, 32); ++d) {
      if (!usable(ids[d])) continue;
      OpenclDevice device;
      device.platform = platforms[p];
      device.id = ids[d];
      device.name = device_text(ids[d], CL_DEVICE_NAME);
      device.driver = device_text(ids[d], CL_DRIVER_VERSION);
      device.label = short_name(platform);
      if (!labels.insert(device.label).second) device.label = device.name;
      device.search = lower(device.label + " | " + platform + " | " + device.name + " | " +
                            platform_text(platforms[p], CL_PLATFORM_VERSION));
      device.shares_memory = device_number<cl_bool>(ids[d], CL_DEVICE_HOST_UNIFIED_MEMORY) == CL_TRUE;
      found.push_back(std::move(device));
    }
  }
  return found;
}

int match_opencl_device(const std::vector<OpenclDevice>& devices, std::string_view text) {
  for (size_t i = 0; i < devices.size(); ++i) {
    if (devices[i].search.find(lower(text)) != std::string::npos) return static_cast<int>(i);
  }
  return -1;
}

Capabilities opencl_capabilities(const OpenclDevice& device) {
  Capabilities c;
  c.name = "opencl:" + device.label + " (" + device.name + ", driver " + device.driver + ")";
  c.windows = {device_number<cl_ulong>(device.id, CL_DEVICE_GLOBAL_MEM_SIZE)};
  c.queues = {0};
  c.queue_depth = 8;
  c.graph_limit = 4096;
  c.imports_host_memory = device.shares_memory;
  // Drivers that share memory do so for whole cache lines or pages; fewer bytes work, with a copy.
  c.buffer_alignment = 64;
  c.row_alignment = 2;
  c.dim_multiple = 32;
  c.row_multiple = 1;
  c.ffn_buckets = {1, 2, 4, 8};
  c.matmul_buckets = {32, 128};
  c.matmul_types = {TensorType::kQ4_0, TensorType::kQ8_0, TensorType::kQ4_K, TensorType::kF16,
                    TensorType::kF32};
  c.ffn_formats = uniform_formats(c.matmul_types);
  c.precision = Precision::kF32;
  c.hop_ns = 50'000;
  return c;
}

std::string cl_error_text(cl_int error) {
  std::string text = "OpenCL error " + std::to_string(error);
  switch (error) {
    case CL_DEVICE_NOT_AVAILABLE:
      return text + " (device not available)";
    case CL_MEM_OBJECT_ALLOCATION_FAILURE:
      return text + " (no memory for an object)";
    case CL_OUT_OF_RESOURCES:
      return text + " (out of resources)";
    case CL_OUT_OF_HOST_MEMORY:
      return text + " (out of host memory)";
    case CL_BUILD_PROGRAM_FAILURE:
      return text + " (the kernels do not compile)";
    default:
      return text;
  }
}

}  // namespace ganglion::accelerator

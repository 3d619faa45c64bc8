#include "accelerator/open_backend.h"

#include "accelerator/sim.h"
#ifdef GANGLION_OPENCL
#include "accelerator/opencl.h"
#endif

namespace ganglion::accelerator {

using base::Code;
using base::Result;
using base::Status;

Result<std::unique_ptr<Backend>> open_backend(std::string_view device) {
  if (device == "sim") {
    SimOptions options;
    options.virtual_clock = false;
    options.kernels = kernels::select_table("");
    return std::unique_ptr<Backend>(std::make_unique<Sim>(options));
  }
#ifdef GANGLION_OPENCL
  constexpr std::string_view kOpencl = "opencl";
  if (device == kOpencl || device.starts_with("opencl:")) {
    const std::string_view text = device == kOpencl ? "" : device.substr(kOpencl.size() + 1);
    auto opened = open_opencl({.device = text, .faults = {}});
    if (opened.ok() || opened.status().code() != Code::kNotFound) return opened;
  }
#endif
  std::string there;
  for (const std::string& name : list_devices()) there += (there.empty() ? "" : ", ") + name;
  return Status(Code::kInvalidArgument,
                "no accelerator is called '" + std::string(device) + "': there are " + there);
}

std::vector<std::string> list_devices() {
  std::vector<std::string> names = {"sim"};
#ifdef GANGLION_OPENCL
  for (const std::string& name : opencl_devices()) names.push_back("opencl:" + name);
#endif
  return names;
}

}  // namespace ganglion::accelerator

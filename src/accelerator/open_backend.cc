#include "accelerator/open_backend.h"

#include "accelerator/sim.h"

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
  std::string there;
  for (const std::string& name : list_devices()) there += (there.empty() ? "" : ", ") + name;
  return Status(Code::kInvalidArgument,
                "no accelerator is called '" + std::string(device) + "': there are " + there);
}

std::vector<std::string> list_devices() {
  return {"sim"};
}

}  // namespace ganglion::accelerator

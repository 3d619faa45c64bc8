// Opens an accelerator by the name that users give (`--device`). Knows which backends this build has.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "accelerator/backend.h"

namespace ganglion::accelerator {

/// "sim": the test double, on the system's clock. "opencl": the first OpenCL device; "opencl:TEXT": the first
/// whose name, or whose platform's, contains TEXT in any case. Errors: kInvalidArgument (no such device, or
/// none in this build; lists those that there are), kDevice.
base::Result<std::unique_ptr<Backend>> open_backend(std::string_view device);

/// Names that open_backend() takes here and now: "sim", "opencl:pocl", ... Cost: loads the drivers.
std::vector<std::string> list_devices();

}  // namespace ganglion::accelerator

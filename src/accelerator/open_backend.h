// Opens an accelerator by the name that users give (`--device`). Knows which backends this build has.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "accelerator/backend.h"

namespace ganglion::accelerator {

/// "sim": the test double, on the system's clock. Errors: kInvalidArgument (no such device; lists those that
/// there are).
base::Result<std::unique_ptr<Backend>> open_backend(std::string_view device);

/// The names that open_backend() takes here and now: "sim", ...
std::vector<std::string> list_devices();

}  // namespace ganglion::accelerator

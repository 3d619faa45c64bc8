// Sizes as options have them.
#pragma once

#include <cstdint>
#include <string>

#include "ganglion/error.h"

namespace ganglion {

/// Bytes of "4096", "64M", "1.5G" (binary), "4GB", "600MB" (decimal). Errors: kInvalidArgument.
Result<uint64_t> parse_size(const std::string& text);

}  // namespace ganglion

// What `--mem` means: bytes, a share of what there is, "auto" or "min".
#include <algorithm>
#include <cstdlib>

#include "base/units.h"
#include "engine/runtime.h"
#include "ganglion/size.h"
#include "platform/memory.h"

namespace ganglion {

Result<uint64_t> parse_size(const std::string& text) {
  return base::parse_bytes(text);
}

}  // namespace ganglion

namespace ganglion::engine {

using base::Code;
using base::Result;
using base::Status;

Result<uint64_t> parse_budget(const std::string& text) {
  if (text == "min") return uint64_t{0};
  const platform::MemoryLimits limits = platform::read_memory_limits();
  const uint64_t most = platform::tightest_limit_bytes(limits);
  if (text == "auto" || text.empty()) return platform::auto_budget_bytes(limits);
  if (text.back() == '%') {
    char* end = nullptr;
    const double percent = std::strtod(text.c_str(), &end);
    if (end == text.c_str() || *end != '%' || !(percent > 0 && percent <= 100)) {
      return Status(Code::kInvalidArgument, "--mem '" + text + "' is not a share - write 1% to 100%");
    }
    return static_cast<uint64_t>(percent / 100 * static_cast<double>(most));
  }
  Result<uint64_t> bytes = base::parse_bytes(text);
  if (!bytes.ok()) {
    return Status(Code::kInvalidArgument,
                  "--mem '" + text + "' is not a size - write 64M, 4G, 75%, auto or min");
  }
  if (bytes.value() == 0)
    return Status(Code::kInvalidArgument, "--mem 0 leaves nothing to run in - try --mem min");
  const uint64_t limit = std::min(limits.cgroup_limit_bytes, limits.rlimit_bytes);
  // The kernel rounds a limit down to whole pages: what was asked for is then still meant.
  constexpr uint64_t kPage = 4096;
  if (bytes.value() > limit && bytes.value() - limit < kPage) return limit;
  if (bytes.value() > limit) {
    return Status(
        Code::kResources,
        base::format("--mem %s is above the limit of %s that the system sets for this process (%s) - use "
                     "--mem %lluM or less",
                     base::format_bytes(bytes.value()).c_str(), base::format_bytes(limit).c_str(),
                     limits.cgroup_limit_bytes <= limits.rlimit_bytes ? limits.cgroup_path.c_str() : "ulimit",
                     static_cast<unsigned long long>(limit / base::kMiB)));
  }
  return bytes;
}

}  // namespace ganglion::engine

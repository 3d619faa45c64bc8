#include "platform/memory.h"

#include <sys/mman.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "base/units.h"

namespace ganglion::platform {

namespace {

// Value of "Name:   123 kB" in a /proc file, in bytes; 0 if absent.
uint64_t proc_field(const std::string& path, const std::string& name) {
  std::ifstream in(path);
  std::string line;
  while (std::getline(in, line)) {
    if (line.rfind(name, 0) == 0 && line.size() > name.size() && line[name.size()] == ':') {
      return std::strtoull(line.c_str() + name.size() + 1, nullptr, 10) * 1024;
    }
  }
  return 0;
}

// A cgroup file's number; `fallback` if unreadable or "max".
uint64_t cgroup_number(const std::string& path, uint64_t fallback) {
  std::ifstream in(path);
  std::string word;
  if (!(in >> word) || word == "max") return fallback;
  const uint64_t value = std::strtoull(word.c_str(), nullptr, 10);
  // v1 writes "no limit" as the largest page-rounded number.
  return value >= (1ULL << 62) ? fallback : value;
}

struct CgroupFiles {
  std::string directory;  // of our own group; empty if none
  std::string mount;      // where to stop walking up
  const char* limit;
  const char* usage;
  const char* peak;
};

CgroupFiles find_cgroup(const std::string& root) {
  std::ifstream in(root + "/proc/self/cgroup");
  std::string line;
  std::string v2_path;
  while (std::getline(in, line)) {
    if (line.rfind("0::", 0) == 0) v2_path = line.substr(3);
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    if (controllers.find(",memory,") != std::string::npos) {
      const std::string mount = root + "/sys/fs/cgroup/memory";
      std::string directory = mount + line.substr(second + 1);
      // Inside a container the path may be that of the host: the mount's root is then our group.
      if (!std::ifstream(directory + "/memory.limit_in_bytes")) directory = mount;
      return {directory, mount, "/memory.limit_in_bytes", "/memory.usage_in_bytes",
              "/memory.max_usage_in_bytes"};
    }
  }
  const std::string mount = root + "/sys/fs/cgroup";
  std::string directory = v2_path.empty() ? "" : mount + v2_path;
  if (!directory.empty() && !std::ifstream(directory + "/memory.max")) directory = mount;
  return {directory, mount, "/memory.max", "/memory.current", "/memory.peak"};
}

}  // namespace

MemoryLimits read_memory_limits(const std::string& root) {
  MemoryLimits limits;
  limits.available_bytes = proc_field(root + "/proc/meminfo", "MemAvailable");
  const CgroupFiles group = find_cgroup(root);
  std::string directory = group.directory;
  while (!directory.empty() && directory.size() >= group.mount.size()) {
    const uint64_t limit = cgroup_number(directory + group.limit, kNoLimit);
    if (limit < limits.cgroup_limit_bytes) {
      limits.cgroup_limit_bytes = limit;
      limits.cgroup_usage_bytes = cgroup_number(directory + group.usage, 0);
      limits.cgroup_path = directory;
    }
    const size_t slash = directory.find_last_of('/');
    directory = slash == std::string::npos ? "" : directory.substr(0, slash);
  }
  for (const auto resource : {RLIMIT_AS, RLIMIT_DATA}) {
    rlimit value = {};
    if (::getrlimit(resource, &value) == 0 && value.rlim_cur != RLIM_INFINITY) {
      limits.rlimit_bytes = std::min<uint64_t>(limits.rlimit_bytes, value.rlim_cur);
    }
  }
  return limits;
}

uint64_t tightest_limit_bytes(const MemoryLimits& limits) {
  return std::min({limits.available_bytes, limits.cgroup_limit_bytes, limits.rlimit_bytes});
}

uint64_t auto_budget_bytes(const MemoryLimits& limits) {
  return tightest_limit_bytes(limits) / 100 * 85;
}

ProcessMemory read_process_memory() {
  const std::string status = "/proc/self/status";
  return {proc_field(status, "VmRSS"), proc_field(status, "RssFile"), proc_field(status, "VmHWM"),
          proc_field(status, "VmPTE")};
}

uint64_t read_cgroup_peak() {
  const CgroupFiles group = find_cgroup("");
  return group.directory.empty() ? 0 : cgroup_number(group.directory + group.peak, 0);
}

double read_memory_pressure() {
  const CgroupFiles group = find_cgroup("");
  for (const std::string& path :
       {group.directory + "/memory.pressure", std::string("/proc/pressure/memory")}) {
    std::ifstream in(path);
    std::string line;
    while (std::getline(in, line)) {
      const size_t at = line.find("avg10=");
      if (line.rfind("full", 0) == 0 && at != std::string::npos) {
        return std::strtod(line.c_str() + at + std::strlen("avg10="), nullptr);
      }
    }
  }
  return 0;
}

void raise_oom_score() {
  std::ofstream("/proc/self/oom_score_adj") << "500\n";
}

uint8_t* reserve_address_space(size_t bytes) {
  constexpr size_t kAlign = 2 * base::kMiB;
  void* raw = ::mmap(nullptr, bytes + kAlign, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (raw == MAP_FAILED) return nullptr;
  auto* start = static_cast<uint8_t*>(raw);
  uint8_t* aligned = start + (kAlign - reinterpret_cast<uintptr_t>(start) % kAlign) % kAlign;
  if (aligned > start) ::munmap(start, static_cast<size_t>(aligned - start));
  const auto tail = static_cast<size_t>(start + bytes + kAlign - (aligned + bytes));
  if (tail > 0) ::munmap(aligned + bytes, tail);
  return aligned;
}

void release_address_space(uint8_t* at, size_t bytes) {
  ::munmap(at, bytes);
}

void discard_pages(uint8_t* at, size_t bytes) {
  ::madvise(at, bytes, MADV_DONTNEED);
}

void advise_huge_pages(uint8_t* at, size_t bytes) {
  ::madvise(at, bytes, MADV_HUGEPAGE);
}

}  // namespace ganglion::platform

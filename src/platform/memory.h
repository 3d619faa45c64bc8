// Memory limits of this process and what it uses: /proc, cgroup v1 and v2, rlimits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace ganglion::platform {

inline constexpr uint64_t kNoLimit = UINT64_MAX;

struct MemoryLimits {
  uint64_t available_bytes = 0;            ///< MemAvailable of the machine.
  uint64_t cgroup_limit_bytes = kNoLimit;  ///< The tightest limit of our cgroup and its parents.
  uint64_t cgroup_usage_bytes = 0;         ///< What that cgroup uses now.
  uint64_t rlimit_bytes = kNoLimit;        ///< The tighter of RLIMIT_AS and RLIMIT_DATA.
  std::string cgroup_path;                 ///< Where the limit stands; empty if there is none.
};

/// Reads the limits now in force. `root` is prefixed to /proc and /sys, for tests.
MemoryLimits read_memory_limits(const std::string& root = "");

/// The smallest of all limits.
uint64_t tightest_limit_bytes(const MemoryLimits& limits);
/// The budget taken where none is given: 85 % of the tightest limit.
uint64_t auto_budget_bytes(const MemoryLimits& limits);

struct ProcessMemory {
  uint64_t resident_bytes = 0;    ///< VmRSS.
  uint64_t file_bytes = 0;        ///< RssFile: the part of it that is code and data of files.
  uint64_t peak_bytes = 0;        ///< VmHWM.
  uint64_t page_table_bytes = 0;  ///< VmPTE.
};
ProcessMemory read_process_memory();

/// Largest usage that our memory cgroup has recorded, or 0 where none is readable.
uint64_t read_cgroup_peak();

/// Share of the last ten seconds, in percent, in which all work stood still for want of memory (PSI "full" of
/// our cgroup, else of the system); 0 where the kernel does not say.
double read_memory_pressure();

/// Makes this process the kernel's first choice when memory runs out.
void raise_oom_score();

/// Reserves address space without memory, a multiple of 2 MiB and aligned to it; null if refused.
uint8_t* reserve_address_space(size_t bytes);
void release_address_space(uint8_t* at, size_t bytes);
/// Gives the pages of [at, at + bytes) back to the system; they read as zero after.
void discard_pages(uint8_t* at, size_t bytes);
/// Asks for huge pages in [at, at + bytes); a hint.
void advise_huge_pages(uint8_t* at, size_t bytes);

}  // namespace ganglion::platform

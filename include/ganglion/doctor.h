// What this machine can do: processor, memory bandwidth, disk rates, limits.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ganglion/error.h"

namespace ganglion {

struct BandwidthSample {
  int threads = 0;
  double bytes_per_s = 0;
};

struct DiskSample {
  uint64_t read_bytes = 0;  ///< Size of one read.
  int depth = 0;            ///< Reads under way at once.
  bool sequential = false;
  double bytes_per_s = 0;
};

struct DoctorReport {
  std::string cpu;
  std::string cpu_features;
  int threads = 0;                         ///< Used by default.
  std::vector<std::string> kernel_tables;  ///< Best first.
  std::string kernel_self_test;            ///< "ok", or which kernel differs.
  uint64_t available_bytes = 0;
  uint64_t cgroup_limit_bytes = 0;  ///< 0: none.
  uint64_t rlimit_bytes = 0;        ///< 0: none.
  uint64_t auto_budget_bytes = 0;   ///< What --mem auto means now.
  std::vector<BandwidthSample> memory;
  std::string disk_file;  ///< What was read.
  std::string io;         ///< "io_uring" or "pread pool".
  std::string io_note;    ///< Why not io_uring, if so.
  bool direct_io = false;
  std::vector<DiskSample> disk;
};

/// Measures for a few seconds. Reads `disk_path` (a large file); if it is empty, a temporary file of 256 MiB
/// in the working directory, removed after. Errors: kIo, kNotFound; kResources where the disk is full.
Result<DoctorReport> examine_machine(const std::string& disk_path);

}  // namespace ganglion

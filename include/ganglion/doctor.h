// What this machine can do: processor, memory bandwidth, disk rates, limits.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ganglion/engine.h"
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
  double cpu_s_per_read = 0;  ///< Processor time, all threads and the kernel's work for them together.
};

/// Memory and disk read at once by the threads that compute, as when weights are streamed.
struct OverlapSample {
  int threads = 0;
  double memory_bytes_per_s = 0;
  DiskSample disk;
};

struct KernelSample {
  std::string type;                ///< Of the weights.
  std::string isa;                 ///< Kernel table.
  size_t tokens = 0;               ///< Evaluated together: 1 by one thread, weights in cache; or, as when
                                   ///< reading a prompt, by all threads, weights in memory: 512, or the 32
                                   ///< of a small expert.
  double multiply_adds_per_s = 0;  ///< Of one thread.
};

/// Scores and sums over 512 cached positions.
struct AttentionSample {
  std::string kv_type;  ///< "f16", "q8_0", "f32"
  std::string isa;
  double multiply_adds_per_s = 0;  ///< Of one thread.
};

struct DoctorOptions {
  /// A large file to read; empty: a temporary one of 256 MiB in the working directory, removed after.
  std::string disk_path;
  bool quick = false;  ///< Under 5 s instead of under 30 s: fewer sizes and depths.
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
  std::vector<OverlapSample> overlap;
  std::vector<KernelSample> kernels;
  std::vector<AttentionSample> attention;
  std::string device;  ///< device_identity() of what was read.
  int64_t measured_unix_s = 0;
};

/// Errors: kIo, kNotFound; kResources where the disk is full.
Result<DoctorReport> examine_machine(const DoctorOptions& options);

/// DoctorReport::cpu of this machine.
std::string processor_name();
/// The device that a file lies on: numbers, file system, model and serial number where they can be read.
std::string device_identity(const std::string& path);

/// What a prediction needs to know of a machine and the disk that a model lies on.
struct MachineRates {
  int threads = 0;
  double memory_bytes_per_s = 0;  ///< Read by `threads` threads.
  double disk_bytes_per_s = 0;    ///< Blocks of 512 KiB, 4 under way.
  double block_latency_s = 0;     ///< What one such block alone takes longer than at that rate.
  double random_reads_per_s = 0;  ///< Of 16 KiB, 32 under way.
  double cpu_s_per_read = 0;      ///< Processor time of such a read.
  // What memory and disk reach at once, as shares of each alone: 1 to 2.
  double overlap = 2;         ///< With blocks,
  double overlap_random = 2;  ///< with such small reads.
  // Of all threads:
  double multiply_adds_per_s = 0;            ///< the kernel for `weight_type`, many tokens at once,
  double expert_multiply_adds_per_s = 0;     ///< with the few tokens and short rows of a small expert,
  double attention_multiply_adds_per_s = 0;  ///< attention over a KV cache of the plan's type.
  std::string weight_type;
  int64_t measured_unix_s = 0;
};

/// Takes under a second. Errors: kIo, kModelFile.
Result<MachineRates> measure_rates(const PlanSummary& plan);

/// Rates measured before on this machine, disk, thread count and type, if at most `most_age_s` old; kept in
/// `cache_dir`.
Result<MachineRates> load_rates(const std::string& cache_dir, const PlanSummary& plan, int64_t most_age_s);
Status save_rates(const std::string& cache_dir, const PlanSummary& plan, const MachineRates& rates);

/// What a report says of a plan's threads, kernels and weight type. Pure. Errors: kNotFound if it lacks any.
Result<MachineRates> rates_from(const DoctorReport& report, const PlanSummary& plan);

struct Prediction {
  double decode_tokens_per_s = 0;
  double prefill_tokens_per_s = 0;
  std::string decode_limit;   ///< "memory bandwidth" or "disk".
  std::string prefill_limit;  ///< "compute" or "disk".
};

/// Pure. The cost model: a pass costs the longer of reading and computing, the processor time of small reads
/// included, but no less than both together over `overlap` (a virtual disk's work may be done by processors
/// that compute). Which experts a generated token needs is known layer by layer: their reads overlap with
/// nothing but their own computing, and each layer waits for a first block.
Prediction predict(const PlanSummary& plan, const MachineRates& rates);

}  // namespace ganglion

// The public doctor: gathers facts and measures memory and disk.
#include "ganglion/doctor.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <ctime>

#include "async_io/read_queue.h"
#include "base/tensor_type.h"
#include "base/units.h"
#include "kernels/kernel_table.h"
#include "neuron_cache/arena.h"
#include "platform/clock.h"
#include "platform/cpu.h"
#include "platform/file.h"
#include "platform/memory.h"
#include "profile/disk_sampler.h"
#include "profile/kernel_rate.h"
#include "profile/memory_bandwidth.h"

namespace ganglion {

using profile::DiskCase;
using profile::kBlockReads;
using profile::kBundleReads;
using profile::MemoryReader;

namespace {

constexpr uint64_t kTemporaryBytes = 256 * base::kMiB;
constexpr size_t kBandwidthBytes = 256 * base::kMiB;
constexpr int64_t kSampleNs = 250'000'000;
constexpr int64_t kQuickNs = 100'000'000;
// Of block reads: a disk may start faster than it goes on.
constexpr int64_t kSustainedNs = 2'000'000'000;

// A nameless file to read from, filled with bytes that no layer below can compress or leave out: its
// descriptor.
Result<int> make_temporary() {
  const std::string name = ".ganglion-doctor-" + std::to_string(::getpid());
  const int fd = ::open(name.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0) {
    return Status(Code::kIo, std::string("no file can be written here (") + std::strerror(errno) +
                                 ") - name a large file to read instead");
  }
  ::unlink(name.c_str());
  std::vector<uint64_t> chunk(base::kMiB / sizeof(uint64_t));
  uint64_t state = 88172645463325252ULL;
  for (uint64_t done = 0; done < kTemporaryBytes; done += base::kMiB) {
    for (uint64_t& word : chunk) {
      state ^= state << 13;
      state ^= state >> 7;
      state ^= state << 17;
      word = state;
    }
    if (::write(fd, chunk.data(), base::kMiB) != static_cast<ssize_t>(base::kMiB)) {
      ::close(fd);
      return Status(Code::kResources, "256 MiB cannot be written here - name a large file to read instead");
    }
  }
  ::fsync(fd);
  ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
  return fd;
}

// Reads under way together: address space for them all, and no more than a small machine has.
constexpr uint64_t kMostInFlight = 64 * base::kMiB;

std::vector<DiskCase> disk_cases(bool quick) {
  if (quick) {
    return {{4 * base::kKiB, 1, false},   {4 * base::kKiB, 32, false},  {16 * base::kKiB, 32, false},
            {64 * base::kKiB, 32, false}, {512 * base::kKiB, 4, false}, {512 * base::kKiB, 1, true},
            {512 * base::kKiB, 4, true},  {512 * base::kKiB, 16, true}, {4 * base::kMiB, 4, true}};
  }
  std::vector<DiskCase> cases;
  for (const uint64_t kib : {4, 8, 16, 64, 256, 512, 1024, 4096}) {
    for (const bool sequential : {false, true}) {
      for (const int depth : {1, 4, 16, 32, 64}) {
        if (kib * base::kKiB * static_cast<uint64_t>(depth) <= kMostInFlight)
          cases.push_back({kib * base::kKiB, depth, sequential});
      }
    }
  }
  return cases;
}

Status measure_disk(const std::string& path, bool quick, DoctorReport* report) {
  GANGLION_ASSIGN_OR_RETURN(const platform::File file, platform::File::open(path));
  const std::unique_ptr<async_io::ReadQueue> queue =
      async_io::make_read_queue({.allow_page_cache = false}, &report->io_note);
  neuron_cache::Arena arena(kMostInFlight);
  GANGLION_ASSIGN_OR_RETURN(neuron_cache::Region memory,
                            neuron_cache::Region::reserve(arena, kMostInFlight, "disk measurement"));
  GANGLION_RETURN_IF_ERROR(memory.resize(kMostInFlight));
  profile::DiskSampler sampler(*queue, file, memory.bytes().first(kMostInFlight));
  for (const DiskCase& c : disk_cases(quick)) {
    if (file.size() < c.bytes && !report->disk.empty()) continue;  // A small file says what it can.
    const int64_t ns = quick ? kQuickNs : c == kBlockReads ? kSustainedNs : kSampleNs;
    GANGLION_ASSIGN_OR_RETURN(const DiskSample sample, sampler.run(c, ns));
    report->disk.push_back(sample);
  }
  MemoryReader reader(report->threads, kBandwidthBytes);
  for (const DiskCase& c : {kBlockReads, kBundleReads}) {
    if (file.size() < c.bytes) continue;
    OverlapSample both;
    both.threads = report->threads;
    GANGLION_ASSIGN_OR_RETURN(
        both.disk, sampler.run_beside(c, quick ? kQuickNs : kSampleNs, &reader, &both.memory_bytes_per_s));
    report->overlap.push_back(both);
  }
  report->io = std::string(queue->name());
  report->direct_io = file.direct_fd() >= 0 && queue->stats().direct;
  return ok_status();
}

void measure_kernels(bool quick, DoctorReport* report) {
  constexpr base::TensorType kTypes[] = {base::TensorType::kQ4_0, base::TensorType::kQ8_0,
                                         base::TensorType::kQ4_K, base::TensorType::kQ6_K,
                                         base::TensorType::kF16};
  const std::string isa(kernels::available_tables().front()->name);
  const int64_t ns = quick ? kQuickNs / 2 : kQuickNs;
  const int64_t prompt_ns = quick ? kQuickNs / 2 : kSampleNs;
  for (const base::TensorType type : kTypes) {
    const std::string name(base::tensor_type_info(type).name);
    report->kernels.push_back({name, isa, 1, profile::measure_kernel(type, isa, ns)});
    for (const profile::PromptShape& shape :
         {profile::kExpertPrompt, profile::prompt_shape(kBandwidthBytes)}) {
      report->kernels.push_back(
          {name, isa, shape.tokens,
           profile::measure_prompt_kernel(type, isa, shape, report->threads, kBandwidthBytes, prompt_ns)});
    }
  }
  for (size_t type = 0; type < kernels::kKvTypes; ++type) {
    report->attention.push_back(
        {std::string(kernels::kv_type_names()[type]), isa,
         profile::measure_attention(static_cast<kernels::KvType>(type), isa, ns / 2)});
  }
}

}  // namespace

std::string processor_name() {
  return platform::cpu_model_name();
}

Result<DoctorReport> examine_machine(const DoctorOptions& options) {
  DoctorReport report;
  report.cpu = platform::cpu_model_name();
  report.cpu_features = platform::cpu_features();
  report.threads = platform::default_thread_count();
  for (const kernels::KernelTable* table : kernels::available_tables())
    report.kernel_tables.emplace_back(table->name);
  const std::string_view broken = kernels::self_test(*kernels::available_tables().front());
  report.kernel_self_test = broken.empty() ? "ok" : std::string(broken);
  const platform::MemoryLimits limits = platform::read_memory_limits();
  report.available_bytes = limits.available_bytes;
  if (limits.cgroup_limit_bytes != platform::kNoLimit) report.cgroup_limit_bytes = limits.cgroup_limit_bytes;
  if (limits.rlimit_bytes != platform::kNoLimit) report.rlimit_bytes = limits.rlimit_bytes;
  report.auto_budget_bytes = platform::auto_budget_bytes(limits);
  for (int threads = 1; threads < 2 * report.threads; threads *= 2) {
    const int count = std::min(threads, report.threads);
    report.memory.push_back({count, profile::measure_memory_bandwidth(count, kBandwidthBytes)});
  }
  measure_kernels(options.quick, &report);
  report.measured_unix_s = static_cast<int64_t>(std::time(nullptr));
  report.disk_file = options.disk_path;
  report.device = device_identity(options.disk_path.empty() ? "." : options.disk_path);
  if (!options.disk_path.empty()) {
    GANGLION_RETURN_IF_ERROR(measure_disk(options.disk_path, options.quick, &report));
    return report;
  }
  report.disk_file = "a temporary file here";
  const Result<int> temporary = make_temporary();
  if (!temporary.ok()) {
    report.io_note = "not measured: " + temporary.status().message();
    return report;
  }
  const Status status =
      measure_disk("/proc/self/fd/" + std::to_string(temporary.value()), options.quick, &report);
  ::close(temporary.value());
  if (!status.ok()) return status;
  return report;
}

}  // namespace ganglion

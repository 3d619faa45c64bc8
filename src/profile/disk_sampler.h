// Read rates of a file by size and number of reads under way.
#pragma once

#include <span>

#include "async_io/read_queue.h"
#include "base/status.h"
#include "ganglion/doctor.h"
#include "platform/file.h"
#include "profile/memory_bandwidth.h"

namespace ganglion::profile {

/// How a file is read.
struct DiskCase {
  uint64_t bytes = 0;  ///< Of one read.
  int depth = 0;       ///< Reads under way.
  bool sequential = false;
  bool operator==(const DiskCase&) const = default;
};
inline DiskCase case_of(const DiskSample& sample) {
  return {sample.read_bytes, sample.depth, sample.sequential};
}
// What predictions use: blocks, as much under way as staging takes at least, or one alone, and about a
// neuron's bundle.
inline constexpr DiskCase kBlockReads = {uint64_t{512} << 10, 4, true};
inline constexpr DiskCase kSingleReads = {uint64_t{512} << 10, 1, true};
inline constexpr DiskCase kBundleReads = {uint64_t{16} << 10, 32, false};

/// Keeps `depth` reads of one size under way for a while.
class DiskSampler {
 public:
  /// `memory` receives the reads, round and round: aligned for direct reads, at least depth * bytes of any
  /// run(); far more than caches hold, lest reads into them look cheap.
  DiskSampler(async_io::ReadQueue& queue, const platform::File& file, std::span<uint8_t> memory)
      : queue_(queue), file_(file), memory_(memory) {}

  /// Errors: kInvalidArgument if the file is smaller than one read; those of reading.
  base::Result<DiskSample> run(const DiskCase& reads, int64_t duration_ns) {
    return run_beside(reads, duration_ns, nullptr, nullptr);
  }
  /// The same while `reader` (or none) reads memory, this thread looking after completions in between;
  /// `memory` receives its rate.
  base::Result<DiskSample> run_beside(const DiskCase& reads, int64_t duration_ns, MemoryReader* reader,
                                      double* memory_bytes_per_s);

 private:
  void start_read(async_io::ReadOp* op);

  async_io::ReadQueue& queue_;
  const platform::File& file_;
  std::span<uint8_t> memory_;
  size_t slot_ = 0;  // where the next read goes
  DiskCase reads_;
  uint64_t places_ = 0;
  uint64_t next_ = 0;
  uint64_t random_ = 1;
  uint64_t done_bytes_ = 0;
  uint64_t done_reads_ = 0;
  int64_t deadline_ns_ = 0;
  base::Status error_;
};

}  // namespace ganglion::profile

// Read rates of a file by size and number of reads under way.
#pragma once

#include "async_io/read_queue.h"
#include "base/status.h"
#include "ganglion/doctor.h"
#include "platform/file.h"

namespace ganglion::profile {

/// Keeps `depth` reads of one size under way for a while.
class DiskSampler {
 public:
  /// `memory` holds the reads: aligned for direct reads, depth * read_bytes of any run().
  DiskSampler(async_io::ReadQueue& queue, const platform::File& file, uint8_t* memory)
      : queue_(queue), file_(file), memory_(memory) {}

  /// Errors: kInvalidArgument if the file is smaller than one read; those of reading.
  base::Result<DiskSample> run(uint64_t read_bytes, int depth, bool sequential, int64_t duration_ns);

 private:
  void start_read(async_io::ReadOp* op);

  async_io::ReadQueue& queue_;
  const platform::File& file_;
  uint8_t* memory_;
  uint64_t read_bytes_ = 0;
  bool sequential_ = false;
  uint64_t places_ = 0;
  uint64_t next_ = 0;
  uint64_t random_ = 1;
  uint64_t done_bytes_ = 0;
  uint64_t done_reads_ = 0;
  int64_t deadline_ns_ = 0;
  base::Status error_;
};

}  // namespace ganglion::profile

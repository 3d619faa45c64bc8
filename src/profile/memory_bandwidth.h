// Read bandwidth of memory by number of threads, with a loop of our own.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "platform/threads.h"
#include "profile/mapping.h"

namespace ganglion::profile {

/// Reads a buffer again and again on all threads.
class MemoryReader {
 public:
  MemoryReader(int threads, size_t buffer_bytes);
  /// Reads on for at most `bytes`, without wrapping around; returns how many.
  uint64_t read(size_t bytes);

 private:
  Mapping mapping_;
  std::span<uint64_t> buffer_;
  platform::ThreadPool pool_;
  size_t next_ = 0;
  std::atomic<uint64_t> sink_{0};
};

/// Bytes per second that `threads` threads together read from a buffer of `buffer_bytes`, which should be far
/// larger than any cache and is allocated for the time of the call.
double measure_memory_bandwidth(int threads, size_t buffer_bytes);

}  // namespace ganglion::profile

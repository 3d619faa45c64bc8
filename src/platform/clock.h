// Monotonic time and processor time in nanoseconds.
#pragma once

#include <time.h>

#include <chrono>
#include <cstdint>

namespace ganglion::platform {

inline int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

/// Processor time of all threads of this process, the kernel's on its behalf included.
inline int64_t process_cpu_ns() {
  timespec time = {};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

}  // namespace ganglion::platform

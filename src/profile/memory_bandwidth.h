// Read bandwidth of memory by number of threads, with a loop of our own.
#pragma once

namespace ganglion::profile {

/// Bytes per second that `threads` threads together read from a buffer far larger than any cache.
double measure_memory_bandwidth(int threads);

}  // namespace ganglion::profile

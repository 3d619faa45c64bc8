// Read bandwidth of memory by number of threads, with a loop of our own.
#pragma once

#include <cstddef>

namespace ganglion::profile {

/// Bytes per second that `threads` threads together read from a buffer of `buffer_bytes`, which should be far
/// larger than any cache and is allocated for the time of the call.
double measure_memory_bandwidth(int threads, size_t buffer_bytes);

}  // namespace ganglion::profile

// Processor facts: cores we may use, model name, instruction sets. Asked once at start.
#pragma once

#include <string>

namespace ganglion::platform {

/// Threads to compute with by default: allowed physical cores, bounded by a cgroup CPU quota, at least 1.
int default_thread_count();

/// "AMD EPYC", or the machine's name where /proc/cpuinfo has none.
std::string cpu_model_name();

/// Space-separated instruction sets that matter here ("avx2 fma f16c avx512f avx512_vnni").
std::string cpu_features();

}  // namespace ganglion::platform

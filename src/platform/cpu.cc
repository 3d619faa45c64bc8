#include "platform/cpu.h"

#include <sched.h>
#include <sys/utsname.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <set>
#include <sstream>

namespace ganglion::platform {

namespace {

std::string cpuinfo_field(const std::string& name) {
  std::ifstream in("/proc/cpuinfo");
  std::string line;
  while (std::getline(in, line)) {
    if (line.rfind(name, 0) != 0) continue;
    const size_t colon = line.find(": ");
    return colon == std::string::npos ? "" : line.substr(colon + 2);
  }
  return "";
}

// Cores that `allowed` covers, hyper-threads counted once.
int physical_cores(const cpu_set_t& allowed) {
  std::set<std::string> cores;
  int logical = 0;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(static_cast<size_t>(cpu), &allowed)) continue;
    ++logical;
    std::ifstream in("/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/thread_siblings_list");
    std::string siblings;
    if (std::getline(in, siblings)) cores.insert(siblings);
  }
  return cores.empty() ? logical : static_cast<int>(cores.size());
}

// CPUs that a cgroup quota grants, or 0 for no quota.
double cgroup_cpus() {
  std::ifstream v2("/sys/fs/cgroup/cpu.max");
  std::string quota;
  double period = 0;
  if (v2 >> quota >> period && quota != "max" && period > 0)
    return std::strtod(quota.c_str(), nullptr) / period;
  std::ifstream quota_v1("/sys/fs/cgroup/cpu/cpu.cfs_quota_us");
  std::ifstream period_v1("/sys/fs/cgroup/cpu/cpu.cfs_period_us");
  double micros = 0;
  if (quota_v1 >> micros && period_v1 >> period && micros > 0 && period > 0) return micros / period;
  return 0;
}

}  // namespace

int default_thread_count() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (::sched_getaffinity(0, sizeof allowed, &allowed) != 0) return 1;
  int count = physical_cores(allowed);
  const double quota = cgroup_cpus();
  if (quota > 0) count = std::min(count, static_cast<int>(quota + 0.5));
  return std::max(count, 1);
}

std::string cpu_model_name() {
  const std::string name = cpuinfo_field("model name");
  if (!name.empty()) return name;
  utsname info = {};
  return ::uname(&info) == 0 ? info.machine : "unknown";
}

std::string cpu_features() {
  std::istringstream flags(" " + cpuinfo_field("flags") + " " + cpuinfo_field("Features"));
  const std::set<std::string> relevant = {"avx2",        "fma",         "f16c",    "avx512f", "avx512bw",
                                          "avx512_vnni", "avx_vnni",    "asimd",   "asimddp", "i8mm",
                                          "sve",         "avx512_bf16", "amx_int8"};
  std::string out;
  std::string flag;
  while (flags >> flag) {
    if (relevant.count(flag) != 0) out += (out.empty() ? "" : " ") + flag;
  }
  return out;
}

}  // namespace ganglion::platform

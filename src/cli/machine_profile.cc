#include "cli/machine_profile.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "ganglion/version.h"

namespace ganglion::cli {

using nlohmann::ordered_json;

namespace {

constexpr int kFormat = 2;

// Identities may hold any character: the file is named by a hash (FNV-1a), and says itself what it is about.
std::string file_of(const std::string& folder, const std::string& device) {
  uint64_t hash = 14695981039346656037ULL;
  for (const char c : device) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211ULL;
  char name[48];
  std::snprintf(name, sizeof name, "/profile-%016llx.json", static_cast<unsigned long long>(hash));
  return folder + name;
}

ordered_json disk_json(const DiskSample& sample) {
  return {{"read_bytes", sample.read_bytes},
          {"depth", sample.depth},
          {"sequential", sample.sequential},
          {"bytes_per_s", sample.bytes_per_s},
          {"cpu_s_per_read", sample.cpu_s_per_read}};
}

DiskSample disk_sample(const ordered_json& json) {
  return {json.at("read_bytes").get<uint64_t>(), json.at("depth").get<int>(),
          json.at("sequential").get<bool>(), json.at("bytes_per_s").get<double>(),
          json.at("cpu_s_per_read").get<double>()};
}

// The lists; throws what the JSON library throws.
void read_samples(const ordered_json& json, DoctorReport* report) {
  for (const ordered_json& sample : json.at("memory")) {
    report->memory.push_back({sample.at("threads").get<int>(), sample.at("bytes_per_s").get<double>()});
  }
  for (const ordered_json& sample : json.at("disk")) report->disk.push_back(disk_sample(sample));
  for (const ordered_json& sample : json.at("overlap")) {
    report->overlap.push_back({sample.at("threads").get<int>(), sample.at("memory_bytes_per_s").get<double>(),
                               disk_sample(sample.at("disk"))});
  }
  for (const ordered_json& sample : json.at("kernels")) {
    report->kernels.push_back({sample.at("type").get<std::string>(), sample.at("isa").get<std::string>(),
                               sample.at("tokens").get<size_t>(),
                               sample.at("multiply_adds_per_s").get<double>()});
  }
  for (const ordered_json& sample : json.at("attention")) {
    report->attention.push_back({sample.at("kv_type").get<std::string>(), sample.at("isa").get<std::string>(),
                                 sample.at("multiply_adds_per_s").get<double>()});
  }
}

}  // namespace

std::string profile_json(const DoctorReport& report) {
  ordered_json out = {{"format", kFormat},
                      {"build", build_facts()},
                      {"measured_unix_s", report.measured_unix_s},
                      {"cpu", report.cpu},
                      {"cpu_features", report.cpu_features},
                      {"threads", report.threads},
                      {"kernel_tables", report.kernel_tables},
                      {"kernel_self_test", report.kernel_self_test},
                      {"available_bytes", report.available_bytes},
                      {"cgroup_limit_bytes", report.cgroup_limit_bytes},
                      {"rlimit_bytes", report.rlimit_bytes},
                      {"auto_budget_bytes", report.auto_budget_bytes},
                      {"disk_file", report.disk_file},
                      {"device", report.device},
                      {"io", report.io},
                      {"io_note", report.io_note},
                      {"direct_io", report.direct_io},
                      {"memory", ordered_json::array()},
                      {"kernels", ordered_json::array()},
                      {"attention", ordered_json::array()},
                      {"disk", ordered_json::array()},
                      {"overlap", ordered_json::array()}};
  for (const BandwidthSample& sample : report.memory) {
    out["memory"].push_back({{"threads", sample.threads}, {"bytes_per_s", sample.bytes_per_s}});
  }
  for (const KernelSample& sample : report.kernels) {
    out["kernels"].push_back({{"type", sample.type},
                              {"isa", sample.isa},
                              {"tokens", sample.tokens},
                              {"multiply_adds_per_s", sample.multiply_adds_per_s}});
  }
  for (const AttentionSample& sample : report.attention) {
    out["attention"].push_back({{"kv_type", sample.kv_type},
                                {"isa", sample.isa},
                                {"multiply_adds_per_s", sample.multiply_adds_per_s}});
  }
  for (const DiskSample& sample : report.disk) out["disk"].push_back(disk_json(sample));
  for (const OverlapSample& both : report.overlap) {
    out["overlap"].push_back({{"threads", both.threads},
                              {"memory_bytes_per_s", both.memory_bytes_per_s},
                              {"disk", disk_json(both.disk)}});
  }
  return out.dump(1, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

Result<DoctorReport> parse_profile(const std::string& text) {
  try {
    const ordered_json json = ordered_json::parse(text);
    if (json.at("format").get<int>() != kFormat)
      return Status(Code::kInvalidArgument, "a profile of another version");
    DoctorReport report;
    report.measured_unix_s = json.at("measured_unix_s").get<int64_t>();
    report.cpu = json.at("cpu").get<std::string>();
    report.cpu_features = json.at("cpu_features").get<std::string>();
    report.threads = json.at("threads").get<int>();
    report.device = json.at("device").get<std::string>();
    report.disk_file = json.at("disk_file").get<std::string>();
    report.io = json.at("io").get<std::string>();
    report.direct_io = json.at("direct_io").get<bool>();
    read_samples(json, &report);
    return report;
  } catch (const nlohmann::json::exception& error) {
    return Status(Code::kInvalidArgument, std::string("not a profile: ") + error.what());
  }
}

std::string cache_folder() {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  if (cache != nullptr && *cache != 0) return std::string(cache) + "/ganglion";
  const char* home = std::getenv("HOME");
  return home != nullptr && *home != 0 ? std::string(home) + "/.cache/ganglion" : "";
}

Status save_profile(const std::string& folder, const DoctorReport& report) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  const std::string path = file_of(folder, report.device);
  const std::string temporary = path + "." + std::to_string(::getpid());
  std::ofstream out(temporary, std::ios::binary | std::ios::trunc);
  out << profile_json(report);
  out.close();
  if (!out.fail() && std::rename(temporary.c_str(), path.c_str()) == 0) return ok_status();
  const std::string why = std::strerror(errno);
  std::remove(temporary.c_str());
  return Status(Code::kIo, "cannot write '" + path + "': " + why);
}

Result<DoctorReport> load_profile(const std::string& folder, const std::string& device,
                                  const std::string& cpu, int64_t most_age_s) {
  const std::string path = file_of(folder, device);
  std::ifstream in(path, std::ios::binary);
  if (!in) return Status(Code::kNotFound, "no profile '" + path + "'");
  const std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  Result<DoctorReport> report = parse_profile(text);
  if (!report.ok()) return report.status().with_context("'" + path + "'");
  if (report.value().device != device || report.value().cpu != cpu)
    return Status(Code::kNotFound, "'" + path + "' is of another machine or disk");
  const int64_t age = static_cast<int64_t>(std::time(nullptr)) - report.value().measured_unix_s;
  if (age < 0 || age > most_age_s)
    return Status(Code::kNotFound, "'" + path + "' is " + std::to_string(age) + " s old");
  return report;
}

}  // namespace ganglion::cli

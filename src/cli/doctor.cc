// doctor: what this machine can do.
#include "ganglion/doctor.h"

#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "ganglion/version.h"

namespace ganglion::cli {

using nlohmann::ordered_json;

namespace {

std::string rate_text(double bytes_per_s) {
  return bytes_text(bytes_per_s) + "/s";
}

std::string limit_text(uint64_t bytes) {
  return bytes == 0 ? "none" : bytes_text(static_cast<double>(bytes));
}

std::string doctor_text(const DoctorReport& report) {
  std::string tables;
  for (const std::string& name : report.kernel_tables) tables += (tables.empty() ? "" : ", ") + name;
  std::string text = "processor         " + report.cpu + " (" + report.cpu_features + ")\n" +
                     "threads           " + std::to_string(report.threads) + "\n" + "kernels           " +
                     tables + "; self-test: " + report.kernel_self_test + "\n" + "memory available  " +
                     bytes_text(static_cast<double>(report.available_bytes)) + ", cgroup limit " +
                     limit_text(report.cgroup_limit_bytes) + ", ulimit " + limit_text(report.rlimit_bytes) +
                     "\n" + "--mem auto        " + bytes_text(static_cast<double>(report.auto_budget_bytes)) +
                     "\n";
  for (const BandwidthSample& sample : report.memory) {
    text += "memory bandwidth  " + rate_text(sample.bytes_per_s) + " with " + std::to_string(sample.threads) +
            " threads\n";
  }
  text += "storage           " + report.disk_file;
  if (!report.disk.empty()) {
    text += ", " + report.io + (report.direct_io ? ", direct" : ", NOT direct: the page cache takes part");
  }
  text += "\n";
  if (!report.io_note.empty()) text += "                  " + report.io_note + "\n";
  for (const DiskSample& sample : report.disk) {
    char line[128];
    std::snprintf(line, sizeof line, "  %-10s %-10s depth %-3d %12s\n",
                  bytes_text(static_cast<double>(sample.read_bytes)).c_str(),
                  sample.sequential ? "sequential" : "random", sample.depth,
                  rate_text(sample.bytes_per_s).c_str());
    text += line;
  }
  return text;
}

std::string doctor_json(const DoctorReport& report) {
  ordered_json out = {{"build", build_facts()},
                      {"cpu", report.cpu},
                      {"cpu_features", report.cpu_features},
                      {"threads", report.threads},
                      {"kernel_tables", report.kernel_tables},
                      {"kernel_self_test", report.kernel_self_test},
                      {"available_bytes", report.available_bytes},
                      {"cgroup_limit_bytes", report.cgroup_limit_bytes},
                      {"rlimit_bytes", report.rlimit_bytes},
                      {"auto_budget_bytes", report.auto_budget_bytes},
                      {"io", report.io},
                      {"direct_io", report.direct_io}};
  for (const BandwidthSample& sample : report.memory) {
    out["memory"].push_back({{"threads", sample.threads}, {"bytes_per_s", sample.bytes_per_s}});
  }
  for (const DiskSample& sample : report.disk) {
    out["disk"].push_back({{"read_bytes", sample.read_bytes},
                           {"depth", sample.depth},
                           {"sequential", sample.sequential},
                           {"bytes_per_s", sample.bytes_per_s}});
  }
  return out.dump(1) + "\n";
}

int run_doctor(const std::string& path, bool json) {
  const Result<DoctorReport> report = examine_machine(path);
  if (!report.ok()) return fail(report.status());
  const Status written = write_out(json ? doctor_json(report.value()) : doctor_text(report.value()));
  return written.ok() ? 0 : fail(written);
}

}  // namespace

void register_doctor(CLI::App& app, CommandBody* body) {
  CLI::App* command = app.add_subcommand("doctor", "Measure processor, memory and disk of this machine");
  auto path = std::make_shared<std::string>();
  auto json = std::make_shared<bool>(false);
  command->add_option("-m,--model,file", *path, "Large file to read from (default: a temporary one here)");
  command->add_flag("--json", *json, "Print JSON");
  command->callback([path, json, body] { *body = [path, json] { return run_doctor(*path, *json); }; });
}

}  // namespace ganglion::cli

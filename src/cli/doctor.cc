// doctor: what this machine can do.
#include "ganglion/doctor.h"

#include "cli/command.h"
#include "cli/machine_profile.h"

namespace ganglion::cli {

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
  for (const KernelSample& sample : report.kernels) {
    char line[128];
    std::snprintf(line, sizeof line,
                  "kernel            %-6s %3zu tokens %8.1f billion multiply-adds/s per thread\n",
                  sample.type.c_str(), sample.tokens, sample.multiply_adds_per_s / 1e9);
    text += line;
  }
  for (const AttentionSample& sample : report.attention) {
    char line[128];
    std::snprintf(line, sizeof line,
                  "attention         %-6s            %8.1f billion multiply-adds/s per thread\n",
                  sample.kv_type.c_str(), sample.multiply_adds_per_s / 1e9);
    text += line;
  }
  text += "storage           " + report.disk_file + " (" + report.device + ")";
  if (!report.disk.empty()) {
    text += ", " + report.io + (report.direct_io ? ", direct" : ", NOT direct: the page cache takes part");
  }
  text += "\n";
  if (!report.io_note.empty()) text += "                  " + report.io_note + "\n";
  for (const DiskSample& sample : report.disk) {
    char line[128];
    std::snprintf(line, sizeof line, "  %-10s %-10s depth %-3d %12s %9.1f us CPU per read\n",
                  bytes_text(static_cast<double>(sample.read_bytes)).c_str(),
                  sample.sequential ? "sequential" : "random", sample.depth,
                  rate_text(sample.bytes_per_s).c_str(), sample.cpu_s_per_read * 1e6);
    text += line;
  }
  for (const OverlapSample& both : report.overlap) {
    text += "  at once, by " + std::to_string(both.threads) + " threads that compute: memory " +
            rate_text(both.memory_bytes_per_s) + ", disk in reads of " +
            bytes_text(static_cast<double>(both.disk.read_bytes)) + " " + rate_text(both.disk.bytes_per_s) +
            "\n";
  }
  return text;
}

struct DoctorFlags {
  DoctorOptions options;
  bool json = false;
};

int run_doctor(const DoctorFlags& flags) {
  const Result<DoctorReport> report = examine_machine(flags.options);
  if (!report.ok()) return fail(report.status());
  const std::string folder = cache_folder();
  if (!folder.empty() && !report.value().disk.empty()) {
    // plan and run then predict by it; where it cannot be kept they measure themselves.
    const Status saved = save_profile(folder, report.value());
    if (!saved.ok()) std::fprintf(stderr, "note: the profile is not kept: %s\n", saved.message().c_str());
  }
  const Status written = write_out(flags.json ? profile_json(report.value()) : doctor_text(report.value()));
  return written.ok() ? 0 : fail(written);
}

}  // namespace

void register_doctor(CLI::App& app, CommandBody* body) {
  CLI::App* command = app.add_subcommand("doctor", "Measure processor, memory and disk of this machine");
  auto flags = std::make_shared<DoctorFlags>();
  command->add_option("-m,--model,file", flags->options.disk_path,
                      "Large file to read from (default: a temporary one here)");
  command->add_flag("--quick", flags->options.quick, "A few sizes and depths only, in under 5 seconds");
  command->add_flag("--json", flags->json, "Print JSON");
  command->callback([flags, body] { *body = [flags] { return run_doctor(*flags); }; });
}

}  // namespace ganglion::cli

// pull and list: models from the hub, and those that are here.
#include "ganglion/pull.h"

#include <cstdlib>

#include "cli/command.h"
#include "cli/progress.h"

namespace ganglion::cli {

namespace {

bool show(void* context, uint64_t done, uint64_t total) {
  if (total > 0) static_cast<Progress*>(context)->update(done, total);
  return !interrupted().load();
}

int run_pull(const PullOptions& options) {
  install_signal_handlers();
  const Result<PullReport> report = pull_with_progress(options);
  if (!report.ok()) return fail(report.status());
  const PullReport& r = report.value();
  std::fprintf(stderr, "%zu file%s, %s, %s downloaded%s\n", r.files, r.files == 1 ? "" : "s",
               bytes_text(static_cast<double>(r.bytes)).c_str(),
               bytes_text(static_cast<double>(r.downloaded)).c_str(),
               r.downloaded > 0 && r.checked ? ", SHA-256 as the hub says" : "");
  const Status written = write_out(r.path + "\n");
  return written.ok() ? 0 : fail(written);
}

int run_list(const std::string& folder) {
  std::string text;
  for (const LocalModel& model : list_models(folder)) {
    char line[64];
    std::snprintf(line, sizeof line, "%10s  ", bytes_text(static_cast<double>(model.bytes)).c_str());
    text += line + model.name + "\n";
  }
  if (text.empty()) std::fprintf(stderr, "no models in %s\n", folder.c_str());
  const Status written = write_out(text);
  return written.ok() ? 0 : fail(written);
}

void add_folder(CLI::App& command, std::string* folder) {
  *folder = models_folder();
  command.add_option("--models-dir", *folder, "Where models lie")
      ->envname("GANGLION_MODELS")
      ->type_name("DIR");
}

}  // namespace

std::string models_folder() {
  const char* named = std::getenv("GANGLION_MODELS");
  if (named != nullptr && *named != 0) return named;
  const char* data = std::getenv("XDG_DATA_HOME");
  if (data != nullptr && *data != 0) return std::string(data) + "/ganglion/models";
  const char* home = std::getenv("HOME");
  return (home == nullptr ? std::string(".") : std::string(home) + "/.local/share") + "/ganglion/models";
}

void take_hub_environment(PullOptions* options) {
  const char* endpoint = std::getenv("HF_ENDPOINT");
  if (endpoint != nullptr && *endpoint != 0) options->endpoint = endpoint;
  while (!options->endpoint.empty() && options->endpoint.back() == '/') options->endpoint.pop_back();
  const char* token = std::getenv("HF_TOKEN");
  if (token != nullptr) options->token = token;
}

Result<PullReport> pull_with_progress(const PullOptions& options) {
  Progress progress("downloading");
  return pull_model(options, show, &progress);
}

void register_pull(CLI::App& app, CommandBody* body) {
  CLI::App* command = app.add_subcommand("pull", "Download a model");
  auto options = std::make_shared<PullOptions>();
  command
      ->add_option("source,--hf-repo", options->source, "user/repo, user/repo:Q4_K_M, or a GGUF file's URL")
      ->required();
  add_folder(*command, &options->folder);
  command->callback([options, body] {
    take_hub_environment(options.get());
    *body = [options] { return run_pull(*options); };
  });
}

void register_list(CLI::App& app, CommandBody* body) {
  CLI::App* command = app.add_subcommand("list", "List the models that were downloaded");
  auto folder = std::make_shared<std::string>();
  add_folder(*command, folder.get());
  command->callback([folder, body] { *body = [folder] { return run_list(*folder); }; });
}

}  // namespace ganglion::cli

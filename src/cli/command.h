// What the commands share: options of a model, opening it with a plan on the screen, interruption, messages.
#pragma once

#include <CLI/CLI.hpp>
#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ganglion/doctor.h"
#include "ganglion/engine.h"
#include "ganglion/pull.h"

namespace ganglion::cli {

/// Options that open a model; every command that runs one has them.
struct ModelFlags {
  EngineOptions engine;
  std::vector<std::string> overrides;
  std::string hf_repo;  ///< A model to download, if `engine.model_path` is empty.
  bool quiet = false;

  void add_to(CLI::App& app);
  /// Fetches a model that is named by its repository; the overrides as pairs. Errors: kInvalidArgument, those
  /// of pull_model.
  Status finish();
};

/// Adds `-m` and `--override` alone, for commands that need no weights.
void add_header_flags(CLI::App& app, EngineOptions* engine, std::vector<std::string>* overrides);
Result<Overrides> parse_overrides(const std::vector<std::string>& texts);

/// Opens, prints the plan to stderr (unless quiet), loads with progress on a terminal. Where asked for,
/// predicts the speed even of a quiet run, before loading; without a value if that fails.
Result<std::unique_ptr<Engine>> open_engine(ModelFlags& flags,
                                            std::optional<Prediction>* prediction_out = nullptr);

/// What this machine makes of a plan, by rates of the last hour; else measures them, for under a second.
Result<Prediction> predict_speed(const PlanSummary& plan);

/// The plan as lines of text; `prediction` may be null.
std::string plan_text(const PlanSummary& plan, const Prediction* prediction);

/// A number option that takes 0 to `most`: unsigned parsing alone would read -1 as 2^64 - 1.
CLI::Option* bounded(CLI::Option* option, int64_t most);

/// Whether JSON text nests so deeply that working on it could exhaust the stack.
bool nests_too_deeply(const std::string& json);

/// Set by SIGINT and SIGTERM; a second signal ends the process at once with 130.
std::atomic<bool>& interrupted();
void install_signal_handlers();

/// Follows SIGUSR1 (a quarter less memory) and SIGUSR2 (a third more, at most what was granted at start)
/// since the last call; says on stderr what was done, and once if a device was lost.
void follow_budget_signals(Engine& engine);

/// Says once on stderr that the accelerator was lost, if it was.
void tell_of_lost_device(const Engine& engine);

/// "ganglion: message" on stderr; the exit code for it.
int fail(const Status& status);

/// Writes to stdout and notices a closed pipe. Errors: kIo.
Status write_out(const std::string& text);

/// The text given, else a file, else standard input if that is no terminal. Errors: kInvalidArgument if it is
/// longer than `limit_bytes`, kNotFound, kIo.
Result<std::string> read_prompt(const std::string& text, const std::string& file, size_t limit_bytes,
                                bool* given);

/// A small file (a template). Errors: as read_prompt.
Result<std::string> read_small_file(const std::string& path);

std::string bytes_text(double bytes);

/// "-m M" commands: registered on the app, run after parsing.
using CommandBody = std::function<int()>;
void register_run(CLI::App& app, CommandBody* body);
void register_serve(CLI::App& app, CommandBody* body);
void register_bench(CLI::App& app, CommandBody* body);
void register_perplexity(CLI::App& app, CommandBody* body);
void register_plan(CLI::App& app, CommandBody* body);
void register_calibrate(CLI::App& app, CommandBody* body);
void register_pack(CLI::App& app, CommandBody* body);
void register_convert(CLI::App& app, CommandBody* body);
void register_inspect(CLI::App& app, CommandBody* body);
void register_verify(CLI::App& app, CommandBody* body);
void register_tokenize(CLI::App& app, CommandBody* body);
void register_detokenize(CLI::App& app, CommandBody* body);
void register_template(CLI::App& app, CommandBody* body);
void register_logits(CLI::App& app, CommandBody* body);
void register_doctor(CLI::App& app, CommandBody* body);
void register_pull(CLI::App& app, CommandBody* body);
void register_list(CLI::App& app, CommandBody* body);

/// $GANGLION_MODELS, or ganglion/models in the user's data folder.
std::string models_folder();
/// HF_ENDPOINT and HF_TOKEN.
void take_hub_environment(PullOptions* options);
Result<PullReport> pull_with_progress(const PullOptions& options);

}  // namespace ganglion::cli

#include "cli/command.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>

#include "cli/machine_profile.h"
#include "cli/progress.h"

namespace ganglion::cli {

namespace {

std::atomic<bool> g_interrupted{false};

std::atomic<int> g_less_memory{0};
std::atomic<int> g_more_memory{0};

void on_budget_signal(int number) {
  ++(number == SIGUSR1 ? g_less_memory : g_more_memory);
}

void on_signal(int) {
  if (g_interrupted.exchange(true)) ::_exit(130);
}

bool show_loading(void* progress, uint64_t done, uint64_t total) {
  static_cast<Progress*>(progress)->update(done, total);
  return !g_interrupted.load();
}

}  // namespace

std::atomic<bool>& interrupted() {
  return g_interrupted;
}

void install_signal_handlers() {
  struct sigaction action = {};
  action.sa_handler = on_signal;
  ::sigaction(SIGINT, &action, nullptr);
  ::sigaction(SIGTERM, &action, nullptr);
  struct sigaction budget = {};
  budget.sa_handler = on_budget_signal;
  budget.sa_flags = SA_RESTART;
  ::sigaction(SIGUSR1, &budget, nullptr);
  ::sigaction(SIGUSR2, &budget, nullptr);
}

void tell_of_lost_device(const Engine& engine) {
  static bool told = false;
  if (told || engine.plan().device.empty()) return;
  const std::string why = engine.stats().device_lost;
  if (why.empty()) return;
  told = true;
  std::fprintf(stderr, "note: the device is lost (%s): the processor goes on with its neurons\n",
               why.c_str());
}

void follow_budget_signals(Engine& engine) {
  tell_of_lost_device(engine);
  static uint64_t granted = engine.plan().budget_bytes;
  const int less = g_less_memory.exchange(0);
  const int more = g_more_memory.exchange(0);
  if (less == 0 && more == 0) return;
  const uint64_t before = engine.plan().budget_bytes;
  uint64_t budget = before;
  for (int i = 0; i < less; ++i) budget -= budget / 4;
  for (int i = 0; i < more; ++i) budget = std::min(granted, budget + budget / 3);
  const Status status = engine.set_budget(budget);
  std::fprintf(stderr, "note: budget %s\n",
               status.ok() ? ("changed from " + bytes_text(static_cast<double>(before)) + " to " +
                              bytes_text(static_cast<double>(budget)))
                                 .c_str()
                           : ("stays: " + status.message()).c_str());
}

void add_header_flags(CLI::App& app, EngineOptions* engine, std::vector<std::string>* overrides) {
  app.add_option("-m,--model,model", engine->model_path,
                 "GGUF file, any shard of a split one, or a directory")
      ->required()
      ->type_name("PATH");
  app.add_option("--override,--override-kv", *overrides, "Replace a metadata key (may be repeated)")
      ->type_name("KEY=VALUE");
}

void ModelFlags::add_to(CLI::App& app) {
  add_header_flags(app, &engine, &overrides);
  app.get_option("--model")->required(false);
  app.add_option("--hf-repo", hf_repo, "Model to download and use, instead of -m (also -hf)")
      ->type_name("USER/REPO[:QUANT]");
  app.add_option("--mem", engine.memory, "Memory for everything: 64M, 4G, 75%, auto or min")
      ->capture_default_str()
      ->type_name("SIZE|auto|min");
  bounded(app.add_option("-t,--threads", engine.threads, "Compute threads (0: one per core)"), 256)
      ->capture_default_str();
  bounded(app.add_option("-c,--ctx-size", engine.context, "Context in tokens (0: trained, at most 4096)"),
          1 << 24)
      ->capture_default_str();
  bounded(app.add_option("-b,--batch-size,--chunk", engine.chunk,
                         "Prompt tokens evaluated together (0: planned)"),
          1 << 14)
      ->capture_default_str();
  app.add_option("--kv-type", engine.kv_type, "Type of the KV cache")
      ->capture_default_str()
      ->type_name("f16|q8_0|f32");
  app.add_option("--isa", engine.isa, "Kernel table (default: the best one)")->envname("GANGLION_ISA");
  app.add_flag_callback(
      "--no-io-uring", [this] { engine.io_uring = false; }, "Read with a pool of threads");
  app.add_flag_callback(
      "--no-direct-io", [this] { engine.direct_io = false; }, "Read through the page cache");
  app.add_flag("--exact", engine.exact, "A pack: generate with all neurons, as its source would");
  app.add_option("--device", engine.device,
                 "A pack: accelerator that computes the most frequent neurons: none, sim, ...")
      ->capture_default_str();
  app.add_option("--hot-neurons", engine.hot_neurons,
                 "Neurons of each layer or expert that the device computes: one number, or one for each "
                 "batch that it knows (default: planned, perhaps none)")
      ->delimiter(',')
      ->check(CLI::Range(0, 1 << 20).description(""))
      ->type_name("N[,N...]");
  app.add_flag("--verify-bundles", engine.verify_bundles,
               "A pack: compare each bundle with its checksum as it is read");
  app.add_flag("-q,--quiet", quiet, "No plan and no statistics");
  const auto refuse = [&](const char* name, const std::string& why) {
    app.add_option_function<std::string>(
           name,
           [name, why](const std::string&) { throw CLI::ValidationError(std::string(name) + ": " + why); },
           "")
        ->group("");
  };
  refuse("--n-gpu-layers",
         "no layers are moved to an accelerator; --device lets one compute a pack's hot neurons");
  // Habits from other tools, where ours is the only behaviour.
  app.add_flag_callback(
         "--mmap,--no-mmap,--direct-io,--no-warmup", [] {}, "Accepted; weights are never mapped")
      ->group("");
}

Result<Overrides> parse_overrides(const std::vector<std::string>& texts) {
  Overrides pairs;
  for (const std::string& text : texts) {
    const size_t equals = text.find('=');
    if (equals == std::string::npos) {
      return Status(Code::kInvalidArgument, "--override '" + text + "' has no '=' - write key=value");
    }
    pairs.emplace_back(text.substr(0, equals), text.substr(equals + 1));
  }
  return pairs;
}

Status ModelFlags::finish() {
  if (engine.model_path.empty() && hf_repo.empty())
    return Status(Code::kInvalidArgument, "no model: give a file with -m, or a model to download with -hf");
  if (engine.model_path.empty()) {
    PullOptions options;
    options.source = hf_repo;
    options.folder = models_folder();
    take_hub_environment(&options);
    install_signal_handlers();
    Result<PullReport> report = pull_with_progress(options);
    // Without the network, what was fetched before will do.
    options.offline = report.status().code() == Code::kIo;
    if (options.offline) {
      const Result<PullReport> local = pull_model(options, nullptr, nullptr);
      if (local.ok()) report = local;
    }
    if (!report.ok()) return report.status();
    engine.model_path = report.value().path;
  }
  Result<Overrides> pairs = parse_overrides(overrides);
  if (!pairs.ok()) return pairs.status();
  engine.overrides = pairs.take();
  return ok_status();
}

Result<std::unique_ptr<Engine>> open_engine(ModelFlags& flags, std::optional<Prediction>* prediction_out) {
  const Status finished = flags.finish();
  if (!finished.ok()) return finished;
  install_signal_handlers();
  Result<std::unique_ptr<Engine>> engine = Engine::open(flags.engine);
  if (!engine.ok()) return engine;
  const PlanSummary& plan = engine.value()->plan();
  // Measured before the weights fill the budget: it takes memory for a moment. A model that is all in memory
  // starts at once; what it will do is no surprise.
  std::optional<Prediction> prediction;
  if (prediction_out != nullptr || (plan.streams && !flags.quiet)) {
    const Result<Prediction> predicted = predict_speed(plan);
    if (predicted.ok()) prediction = predicted.value();
  }
  if (!flags.quiet) {
    for (const std::string& note : plan.notes) std::fprintf(stderr, "note: %s\n", note.c_str());
    std::fprintf(stderr, "%s", plan_text(plan, prediction ? &*prediction : nullptr).c_str());
  }
  if (prediction_out != nullptr) *prediction_out = std::move(prediction);
  prefer_as_memory_victim();
  Status loaded;
  {
    Progress progress("reading weights");
    loaded = engine.value()->load(show_loading, &progress);
  }
  if (!loaded.ok()) return loaded;
  return engine;
}

std::string bytes_text(double bytes) {
  static const char* const kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  size_t unit = 0;
  while (bytes >= 1024 && unit + 1 < std::size(kUnits)) {
    bytes /= 1024;
    ++unit;
  }
  char text[32];
  std::snprintf(text, sizeof text, "%.*f %s", unit == 0 || bytes >= 100 ? 0 : 1, bytes, kUnits[unit]);
  return text;
}

Result<Prediction> predict_speed(const PlanSummary& plan) {
  constexpr int64_t kHour = 3600;
  const std::string folder = cache_folder();
  Result<MachineRates> rates = Status(Code::kNotFound, "no cache folder");
  if (!folder.empty()) {
    const Result<DoctorReport> profile =
        load_profile(folder, device_identity(plan.first_file), processor_name(), kHour);
    if (profile.ok()) rates = rates_from(profile.value(), plan);
    if (profile.status().code() == Code::kInvalidArgument)
      std::fprintf(stderr, "note: ignored: %s\n", profile.status().message().c_str());
    if (!rates.ok()) rates = load_rates(folder, plan, kHour);
  }
  if (!rates.ok()) {
    rates = measure_rates(plan);
    if (!rates.ok()) return rates.status();
    // Only a saving of time: a folder that cannot be written to is no error.
    if (!folder.empty()) (void)save_rates(folder, plan, rates.value());
  }
  return predict(plan, rates.value());
}

std::string plan_text(const PlanSummary& plan, const Prediction* prediction) {
  std::string text;
  const auto line = [&](const std::string& name, uint64_t bytes) {
    char out[160];
    std::snprintf(out, sizeof out, "  %-28s %10s\n", name.c_str(),
                  bytes_text(static_cast<double>(bytes)).c_str());
    text += out;
  };
  text += "plan: " + plan.architecture + ", " + bytes_text(static_cast<double>(plan.model_bytes)) +
          " on disk, budget " + bytes_text(static_cast<double>(plan.budget_bytes)) + "\n";
  for (const MemoryItem& item : plan.items) line(item.name, item.bytes);
  line("planned in all", plan.planned_bytes);
  if (plan.streams) {
    for (const MemoryItem& item : plan.items) {
      if (item.name == "KV cache" && plan.kv_full_bytes > item.bytes) {
        line("KV cache may grow to", plan.kv_full_bytes);
      }
    }
    if (plan.sparse_bytes_per_token > 0) {
      line("touched by an answer's token", plan.sparse_bytes_per_token);
      line("read for each", plan.sparse_streamed_bytes_per_token);
      char out[160];
      std::snprintf(out, sizeof out, "  %-28s %10.0f, of %.0f predicted\n", "neurons read for each",
                    plan.neurons_read_per_token, plan.neurons_per_token);
      text += out;
    } else {
      line("read for every token", plan.streamed_bytes_per_token);
    }
    if (plan.expert_bytes_per_token > 0) line("experts touched by a token", plan.expert_bytes_per_token);
  }
  text += std::string("  ") + (plan.streams ? "streamed" : "all in memory") + ", context " +
          std::to_string(plan.context) + " of " + std::to_string(plan.context_trained) + " (" + plan.kv_type +
          "), chunk " + std::to_string(plan.chunk) + ", " + std::to_string(plan.threads) + " threads, " +
          plan.isa + ", " + plan.io + "\n";
  if (!plan.device.empty()) text += "  " + plan.device + "\n";
  if (prediction != nullptr) {
    char out[200];
    std::snprintf(out, sizeof out, "  predicted: prompt %.1f tokens/s (%s), answer %.1f tokens/s (%s)\n",
                  prediction->prefill_tokens_per_s, prediction->prefill_limit.c_str(),
                  prediction->decode_tokens_per_s, prediction->decode_limit.c_str());
    text += out;
  }
  return text;
}

int fail(const Status& status) {
  std::fprintf(stderr, "ganglion: %s\n", status.message().c_str());
  return exit_code(status.code());
}

Status write_out(const std::string& text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0)
    return ok_status();
  return Status(Code::kIo, std::string("cannot write the output: ") + std::strerror(errno));
}

CLI::Option* bounded(CLI::Option* option, int64_t most) {
  return option->check(CLI::Range(int64_t{0}, most));
}

bool nests_too_deeply(const std::string& json) {
  constexpr int kMostDepth = 200;
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < json.size(); ++i) {
    const char c = json[i];
    if (in_string) {
      if (c == '\\') ++i;
      in_string = c != '"';
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      if (++depth > kMostDepth) return true;
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return false;
}

namespace {

// Reads to the end, but never more than the limit.
Result<std::string> read_stream(std::istream& in, const std::string& name, size_t limit_bytes) {
  std::string text;
  char chunk[65536];
  while (in.read(chunk, sizeof chunk), in.gcount() > 0) {
    text.append(chunk, static_cast<size_t>(in.gcount()));
    if (text.size() > limit_bytes) {
      return Status(Code::kInvalidArgument, name + " is longer than the " +
                                                bytes_text(static_cast<double>(limit_bytes)) +
                                                " that can be used here");
    }
    if (interrupted()) return Status(Code::kCancelled, "interrupted");
  }
  return text;
}

Result<std::string> read_file(const std::string& path, size_t limit_bytes) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error))
    return Status(Code::kIo, "cannot read '" + path + "': it is a directory");
  std::ifstream in(path, std::ios::binary);
  if (!in) return Status(Code::kNotFound, "cannot open '" + path + "': " + std::strerror(errno));
  return read_stream(in, "'" + path + "'", limit_bytes);
}

}  // namespace

Result<std::string> read_small_file(const std::string& path) {
  constexpr size_t kLimit = size_t{1} << 20;
  return read_file(path, kLimit);
}

Result<std::string> read_prompt(const std::string& text, const std::string& file, size_t limit_bytes,
                                bool* given) {
  *given = true;
  if (!text.empty()) return text;
  if (!file.empty()) return read_file(file, limit_bytes);
  *given = ::isatty(STDIN_FILENO) == 0;
  if (!*given) return std::string();
  return read_stream(std::cin, "standard input", limit_bytes);
}

}  // namespace ganglion::cli

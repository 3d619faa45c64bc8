// bench: tokens per second of prompt and answer on random tokens, with what was read and waited for.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>

#include "cli/command.h"
#include "cli/pass_log.h"
#include "cli/progress.h"

namespace ganglion::cli {

using nlohmann::ordered_json;

namespace {

struct BenchFlags {
  ModelFlags model;
  LogFlags log;
  size_t prompt_tokens = 512;
  size_t decode_tokens = 128;
  size_t depth = 0;
  size_t repetitions = 3;
  size_t parallel = 1;
  size_t warm_up = 1;
  bool ablation = false;
  std::string output = "md";
};

struct Measured {
  std::vector<double> prompt_rates;  // one per repetition
  std::vector<double> decode_rates;
  std::vector<double> decode_ms;  // one per token
  uint64_t decode_io_bytes = 0;
  int64_t decode_wait_ns = 0;
  uint64_t hits = 0;
  uint64_t misses = 0;
  // Of packs: neurons, and read requests.
  uint64_t resident = 0, cached = 0, read = 0, reads = 0;
  // Of a device.
  uint64_t hot_calls = 0;
  int64_t hot_wait_ns = 0;
  EngineStats last;
};

double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

double percentile(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(share * static_cast<double>(values.size() - 1) + 0.5)];
}

double deviation(const std::vector<double>& values) {
  if (values.size() < 2) return 0;
  double mean = 0;
  for (const double value : values) mean += value / static_cast<double>(values.size());
  double sum = 0;
  for (const double value : values) sum += (value - mean) * (value - mean);
  return std::sqrt(sum / static_cast<double>(values.size() - 1));
}

/// Feeds random tokens, as the field's benchmarks do: speed does not depend on which.
class Bench {
 public:
  Bench(const BenchFlags& flags, Engine& engine, std::span<const std::unique_ptr<Session>> sessions,
        PassLog& log)
      : flags_(flags), engine_(engine), session_(*sessions[0]), log_(log) {
    for (const std::unique_ptr<Session>& session : sessions) sessions_.push_back(session.get());
  }

  Result<Measured> run() {
    // Unmeasured tokens: pages are touched and caches filled.
    Status warm = feed("warm-up", 1, Phase::kPrompt);
    for (size_t i = 1; i < flags_.warm_up && warm.ok(); ++i) warm = feed("warm-up", 1, Phase::kGeneration);
    if (!warm.ok()) return warm;
    Progress progress("measuring");
    for (size_t i = 0; i < flags_.repetitions; ++i) {
      progress.update(i, flags_.repetitions);
      const Status status = repeat();
      if (!status.ok()) return status;
    }
    return measured_;
  }

 private:
  int32_t random_token() {
    return static_cast<int32_t>(random_() % static_cast<uint32_t>(engine_.text().vocab_size()));
  }

  Status feed(const char* name, size_t count, Phase phase) {
    std::vector<int32_t> tokens(count);
    for (int32_t& token : tokens) token = random_token();
    const Status status = session_.evaluate(tokens, &interrupted(), nullptr, phase);
    log_.add(name, count);
    return status;
  }

  // The next token of every sequence, in one pass.
  Status feed_all() {
    if (sessions_.size() == 1) return feed("answer", 1, Phase::kGeneration);
    std::vector<int32_t> tokens(sessions_.size());
    for (int32_t& token : tokens) token = random_token();
    if (interrupted()) return Status(Code::kCancelled, "interrupted");
    const Status status = engine_.evaluate_batch(sessions_, tokens, Phase::kGeneration);
    log_.add("answer", tokens.size());
    return status;
  }

  Status repeat() {
    if (flags_.prompt_tokens > 0) {
      session_.reset();
      const double start = now_s();
      const Status status = feed("prompt", flags_.prompt_tokens, Phase::kPrompt);
      if (!status.ok()) return status;
      measured_.prompt_rates.push_back(static_cast<double>(flags_.prompt_tokens) / (now_s() - start));
    }
    if (flags_.decode_tokens == 0) return ok_status();
    for (Session* session : sessions_) session->reset();
    if (flags_.depth > 0) {
      const Status status = feed("depth", flags_.depth, Phase::kPrompt);
      if (!status.ok()) return status;
    }
    for (size_t i = 1; i < sessions_.size(); ++i) {
      const Status status = sessions_[i]->fork_from(session_);
      if (!status.ok()) return status;
    }
    const EngineStats before = engine_.stats();
    const double start = now_s();
    for (size_t i = 0; i < flags_.decode_tokens; ++i) {
      follow_budget_signals(engine_);
      const double token_start = now_s();
      const Status status = feed_all();
      if (!status.ok()) return status;
      measured_.decode_ms.push_back((now_s() - token_start) * 1e3);
    }
    measured_.decode_rates.push_back(static_cast<double>(flags_.decode_tokens * sessions_.size()) /
                                     (now_s() - start));
    const EngineStats after = engine_.stats();
    measured_.decode_io_bytes +=
        after.device_bytes + after.cached_bytes - before.device_bytes - before.cached_bytes;
    measured_.decode_wait_ns += after.io_wait_ns - before.io_wait_ns;
    measured_.last = after;
    measured_.resident += after.neurons_resident - before.neurons_resident;
    measured_.cached += after.neurons_cached - before.neurons_cached;
    measured_.read += after.neurons_read - before.neurons_read;
    measured_.reads += after.reads - before.reads;
    measured_.hot_calls += after.hot_calls - before.hot_calls;
    measured_.hot_wait_ns += after.hot_wait_ns - before.hot_wait_ns;
    measured_.hits += after.expert_hits - before.expert_hits;
    measured_.misses += after.expert_misses - before.expert_misses;
    return ok_status();
  }

  const BenchFlags& flags_;
  Engine& engine_;
  Session& session_;
  std::vector<Session*> sessions_;  // The first is session_.
  PassLog& log_;
  std::mt19937 random_{42};
  Measured measured_;
};

ordered_json facts(const BenchFlags& flags, const PlanSummary& plan, const Measured& m,
                   const Prediction* prediction) {
  const double tokens = std::max<double>(1, static_cast<double>(m.decode_ms.size()));
  const double asked = static_cast<double>(m.hits + m.misses);
  const double dense = static_cast<double>(plan.resident_weight_bytes + plan.streamed_bytes_per_token);
  // Of the experts, neurons or bytes of weights that a token touches, the share found in memory.
  const auto neurons = static_cast<double>(m.resident + m.cached + m.read);
  const double hit_rate = asked > 0     ? static_cast<double>(m.hits) / asked
                          : neurons > 0 ? 1 - static_cast<double>(m.read) / neurons
                          : dense > 0   ? static_cast<double>(plan.resident_weight_bytes) / dense
                                        : 1;
  return {{"model", flags.model.engine.model_path},
          {"threads", plan.threads},
          {"isa", plan.isa},
          {"sparsity", plan.sparsity},
          {"budget_bytes", plan.budget_bytes},
          {"peak_rss_bytes", memory_peak().resident_bytes},
          {"prompt_tokens", flags.prompt_tokens},
          {"prompt_tokens_per_s", median(m.prompt_rates)},
          {"decode_tokens", flags.decode_tokens},
          {"sequences", flags.parallel},
          {"decode_tokens_per_s", median(m.decode_rates)},
          {"decode_ms_p50", percentile(m.decode_ms, 0.50)},
          {"decode_ms_p90", percentile(m.decode_ms, 0.90)},
          {"decode_ms_p99", percentile(m.decode_ms, 0.99)},
          {"io_bytes_per_token", static_cast<double>(m.decode_io_bytes) / tokens},
          {"io_wait_ms_per_token", static_cast<double>(m.decode_wait_ns) / 1e6 / tokens},
          {"reads_per_token", static_cast<double>(m.reads) / tokens},
          {"device", plan.device},
          {"hot_calls_per_token", static_cast<double>(m.hot_calls) / tokens},
          {"hot_recomputed", m.last.hot_recomputed},
          {"hot_wait_ms_per_token", static_cast<double>(m.hot_wait_ns) / 1e6 / tokens},
          {"cache_hit_rate", hit_rate},
          {"ahead_reads", m.last.ahead_reads + m.last.neurons_ahead},
          {"ahead_used", m.last.ahead_used + m.last.neurons_ahead_used},
          {"predicted_decode_tokens_per_s",
           prediction == nullptr ? ordered_json() : ordered_json(prediction->decode_tokens_per_s)}};
}

std::string markdown(const BenchFlags& flags, const PlanSummary& plan, const Measured& m,
                     const Prediction* prediction) {
  char line[512];
  std::string text =
      "| model | budget | threads | isa | test | t/s | read per token | I/O wait per token |\n"
      "|---|---|---|---|---|---|---|---|\n";
  const std::string name =
      flags.model.engine.model_path.substr(flags.model.engine.model_path.find_last_of('/') + 1);
  const std::string budget = bytes_text(static_cast<double>(plan.budget_bytes));
  const double tokens = std::max<double>(1, static_cast<double>(m.decode_ms.size()));
  if (flags.prompt_tokens > 0) {
    std::snprintf(line, sizeof line, "| %s | %s | %d | %s | pp%zu | %.2f ± %.2f | | |\n", name.c_str(),
                  budget.c_str(), plan.threads, plan.isa.c_str(), flags.prompt_tokens, median(m.prompt_rates),
                  deviation(m.prompt_rates));
    text += line;
  }
  if (flags.decode_tokens > 0) {
    std::string at = flags.depth > 0 ? " @ d" + std::to_string(flags.depth) : "";
    if (flags.parallel > 1) at += " x " + std::to_string(flags.parallel);
    std::snprintf(line, sizeof line, "| %s | %s | %d | %s | tg%zu%s | %.2f ± %.2f | %s | %.1f ms |\n",
                  name.c_str(), budget.c_str(), plan.threads, plan.isa.c_str(), flags.decode_tokens,
                  at.c_str(), median(m.decode_rates), deviation(m.decode_rates),
                  bytes_text(static_cast<double>(m.decode_io_bytes) / tokens).c_str(),
                  static_cast<double>(m.decode_wait_ns) / 1e6 / tokens);
    text += line;
  }
  text += "\n";
  if (prediction != nullptr) {
    std::snprintf(line, sizeof line, "predicted: pp %.2f (%s), tg %.2f (%s)\n",
                  prediction->prefill_tokens_per_s, prediction->prefill_limit.c_str(),
                  prediction->decode_tokens_per_s, prediction->decode_limit.c_str());
    text += line;
  }
  if (m.hits + m.misses > 0) {
    std::snprintf(line, sizeof line,
                  "experts: %.1f %% found in memory; look-ahead %s, %llu of %llu blocks used\n",
                  100.0 * static_cast<double>(m.hits) / static_cast<double>(m.hits + m.misses),
                  m.last.look_ahead_on ? "on" : "off", static_cast<unsigned long long>(m.last.ahead_used),
                  static_cast<unsigned long long>(m.last.ahead_reads));
    text += line;
  }
  if (m.resident + m.cached + m.read > 0) {
    const double all = static_cast<double>(m.resident + m.cached + m.read);
    std::snprintf(line, sizeof line,
                  "neurons per token: %.0f, %.1f %% resident, %.1f %% cached, %.1f %% read in %.0f requests; "
                  "look-ahead %s, %llu of "
                  "%llu used\n",
                  all / tokens, 100 * static_cast<double>(m.resident) / all,
                  100 * static_cast<double>(m.cached) / all, 100 * static_cast<double>(m.read) / all,
                  static_cast<double>(m.reads) / tokens, m.last.look_ahead_on ? "on" : "off",
                  static_cast<unsigned long long>(m.last.neurons_ahead_used),
                  static_cast<unsigned long long>(m.last.neurons_ahead));
    text += line;
  }
  if (!plan.device.empty()) text += plan.device + "\n";
  if (m.hot_calls > 0) {
    std::snprintf(line, sizeof line, "device: %.1f calls per token, waited for %.2f ms, %llu computed anew\n",
                  static_cast<double>(m.hot_calls) / tokens,
                  static_cast<double>(m.hot_wait_ns) / 1e6 / tokens,
                  static_cast<unsigned long long>(m.last.hot_recomputed));
    text += line;
  }
  return text + "peak memory " + bytes_text(static_cast<double>(memory_peak().resident_bytes)) + " of " +
         budget + "\n";
}

std::string csv(const ordered_json& facts) {
  std::string head;
  std::string row;
  for (const auto& [key, value] : facts.items()) {
    head += (head.empty() ? "" : ",") + key;
    row += (row.empty() ? "" : ",") + value.dump();
  }
  return head + "\n" + row + "\n";
}

struct Run {
  PlanSummary plan;
  Measured measured;
  std::optional<Prediction> prediction;
};

Result<Run> measure(const BenchFlags& flags) {
  ModelFlags model = flags.model;
  Run run;
  Result<std::unique_ptr<Engine>> engine = open_engine(model, &run.prediction);
  if (!engine.ok()) return engine.status();
  std::vector<std::unique_ptr<Session>> sessions;
  for (size_t i = 0; i < flags.parallel; ++i) {
    Result<std::unique_ptr<Session>> session = engine.value()->new_session();
    if (!session.ok()) return session.status();
    sessions.push_back(session.take());
  }
  Result<std::unique_ptr<PassLog>> log =
      PassLog::create(flags.log, *engine.value(), flags.model.engine.model_path);
  if (!log.ok()) return log.status();
  Bench bench(flags, *engine.value(), sessions, *log.value());
  Result<Measured> measured = bench.run();
  if (!measured.ok()) return measured.status();
  const Status logged = log.value()->finish();
  if (!logged.ok()) return logged;
  run.plan = engine.value()->plan();
  run.measured = measured.take();
  return run;
}

// One part of the sparse path after the other, as Figure 14 of PowerInfer-2 has it.
int run_ablation(BenchFlags& flags) {
  const struct {
    const char* name;
    bool exact;
    SparseParts parts;
  } steps[] = {{"streamed dense", true, SparseParts::kBundles},
               {"+ bundles", false, SparseParts::kBundles},
               {"+ neuron cache", false, SparseParts::kNeuronCache},
               {"+ cluster pipeline", false, SparseParts::kClusterPipeline},
               {"+ look-ahead", false, SparseParts::kAll}};
  const std::string device = flags.model.engine.device;
  const std::vector<uint32_t> hot_neurons = flags.model.engine.hot_neurons;
  ordered_json rows = ordered_json::array();
  std::string text =
      "| | t/s | x | I/O wait | read per token | requests per token |\n|---|---|---|---|---|---|\n";
  for (const auto& step : steps) {
    flags.model.engine.exact = step.exact;
    flags.model.engine.device = step.exact ? "none" : device;
    flags.model.engine.hot_neurons = step.exact ? std::vector<uint32_t>() : hot_neurons;
    flags.model.engine.sparse_parts = step.parts;
    const Result<Run> run = measure(flags);
    if (!run.ok()) return fail(run.status());
    const Measured& m = run.value().measured;
    if (!step.exact && m.resident + m.cached + m.read == 0) {
      return fail(Status(Code::kInvalidArgument, "'" + flags.model.engine.model_path +
                                                     "' is no pack: there is nothing to leave out"));
    }
    const double tokens = std::max<double>(1, static_cast<double>(m.decode_ms.size()));
    double all_ms = 0;
    for (const double ms : m.decode_ms) all_ms += ms;
    const double wait = static_cast<double>(m.decode_wait_ns) / 1e6 / all_ms;
    const double rate = median(m.decode_rates);
    rows.push_back({{"parts", step.name},
                    {"decode_tokens_per_s", rate},
                    {"io_wait_share", wait},
                    {"io_bytes_per_token", static_cast<double>(m.decode_io_bytes) / tokens},
                    {"reads_per_token", static_cast<double>(m.reads) / tokens}});
    char line[256];
    std::snprintf(line, sizeof line, "| %s | %.2f | %.2f | %.0f %% | %s | %.0f |\n", step.name, rate,
                  rate / rows[0]["decode_tokens_per_s"].get<double>(), 100 * wait,
                  bytes_text(static_cast<double>(m.decode_io_bytes) / tokens).c_str(),
                  static_cast<double>(m.reads) / tokens);
    text += line;
  }
  const Status written = write_out(flags.output == "md" ? text : rows.dump(1) + "\n");
  return written.ok() ? 0 : fail(written);
}

int run_bench(BenchFlags& flags) {
  if (flags.ablation) flags.prompt_tokens = 0;
  const size_t measured_most = std::max(flags.prompt_tokens, flags.depth + flags.decode_tokens);
  const size_t longest = std::max(measured_most, flags.warm_up);
  if (flags.repetitions == 0 || measured_most == 0 || (flags.ablation && flags.decode_tokens == 0))
    return fail(Status(Code::kInvalidArgument, "nothing to measure"));
  if (flags.model.engine.context == 0) flags.model.engine.context = std::max<size_t>(longest, 1);
  flags.model.engine.sequences = flags.parallel;
  if (flags.output != "md") flags.model.quiet = true;
  if (flags.ablation) return run_ablation(flags);
  const Result<Run> run = measure(flags);
  if (!run.ok()) return fail(run.status());
  const auto& [plan, measured, predicted] = run.value();
  const Prediction* prediction = predicted.has_value() ? &*predicted : nullptr;
  const ordered_json all = facts(flags, plan, measured, prediction);
  const std::string text = flags.output == "json"    ? all.dump(1) + "\n"
                           : flags.output == "jsonl" ? all.dump() + "\n"
                           : flags.output == "csv"   ? csv(all)
                                                     : markdown(flags, plan, measured, prediction);
  const Status written = write_out(text);
  return written.ok() ? 0 : fail(written);
}

}  // namespace

void register_bench(CLI::App& app, CommandBody* body) {
  CLI::App* command = app.add_subcommand("bench", "Measure prompt and answer speed on random tokens");
  auto flags = std::make_shared<BenchFlags>();
  flags->model.add_to(*command);
  flags->log.add_to(*command);
  bounded(command->add_option("-p,--n-prompt", flags->prompt_tokens, "Tokens of the prompt test (0: none)"),
          1 << 24)
      ->capture_default_str();
  bounded(command->add_option("-n,--n-gen", flags->decode_tokens, "Tokens of the answer test (0: none)"),
          1 << 24)
      ->capture_default_str();
  bounded(command->add_option("-d,--n-depth", flags->depth, "Tokens in the context before the answer test"),
          1 << 24)
      ->capture_default_str();
  bounded(command->add_option("-r,--repetitions", flags->repetitions, "Repetitions; medians are printed"),
          1000)
      ->capture_default_str();
  bounded(command->add_option("--warm-up", flags->warm_up, "Tokens before anything is measured"), 1 << 24)
      ->capture_default_str();
  command->add_option("--parallel", flags->parallel, "Sequences whose answers are evaluated as one batch")
      ->check(CLI::Range(1, 32))
      ->capture_default_str();
  command->add_flag("--ablation", flags->ablation,
                    "A pack: the answer test with one part of the sparse path after the other");
  command->add_option("-o,--output", flags->output, "Form of the result")
      ->check(CLI::IsMember({"md", "csv", "json", "jsonl"}).description(""))
      ->capture_default_str()
      ->type_name("md|csv|json|jsonl");
  command->callback([flags, body] { *body = [flags] { return run_bench(*flags); }; });
}

}  // namespace ganglion::cli

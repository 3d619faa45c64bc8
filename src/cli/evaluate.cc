// logits and perplexity: what a model says of given tokens.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "cli/command.h"

namespace ganglion::cli {

namespace {

struct LogitsFlags {
  ModelFlags model;
  std::vector<int32_t> tokens;
  std::vector<size_t> positions;
  std::string output;
};

/// Keeps the logits of chosen positions.
class KeepRows final : public LogitSink {
 public:
  explicit KeepRows(std::vector<size_t> positions)
      : positions_(std::move(positions)), rows_(positions_.size()) {}
  void logits(size_t position, std::span<const float> values) override {
    for (size_t i = 0; i < positions_.size(); ++i) {
      if (positions_[i] == position) rows_[i].assign(values.begin(), values.end());
    }
  }
  const std::vector<std::vector<float>>& rows() const { return rows_; }

 private:
  std::vector<size_t> positions_;
  std::vector<std::vector<float>> rows_;
};

int run_logits(LogitsFlags& flags) {
  std::error_code error;
  if (std::filesystem::equivalent(flags.output, flags.model.engine.model_path, error)) {
    return fail(Status(Code::kInvalidArgument, "the output would overwrite the model"));
  }
  if (flags.positions.empty()) flags.positions = {flags.tokens.size() - 1};
  for (const size_t position : flags.positions) {
    if (position >= flags.tokens.size()) {
      return fail(Status(Code::kInvalidArgument, "position " + std::to_string(position) + " is beyond the " +
                                                     std::to_string(flags.tokens.size()) + " tokens"));
    }
  }
  Result<std::unique_ptr<Engine>> engine = open_engine(flags.model);
  if (!engine.ok()) return fail(engine.status());
  Result<std::unique_ptr<Session>> session = engine.value()->new_session();
  if (!session.ok()) return fail(session.status());
  KeepRows keep(flags.positions);
  const Status status = session.value()->evaluate(flags.tokens, &interrupted(), &keep);
  if (!status.ok()) return fail(status);
  std::ofstream out(flags.output, std::ios::binary | std::ios::trunc);
  for (const std::vector<float>& row : keep.rows()) {
    out.write(reinterpret_cast<const char*>(row.data()),
              static_cast<std::streamsize>(row.size() * sizeof(float)));
  }
  out.close();
  if (!out) return fail(Status(Code::kIo, "cannot write '" + flags.output + "'"));
  return 0;
}

constexpr size_t kMostTextBytes = size_t{256} << 20;

struct PerplexityFlags {
  ModelFlags model;
  std::string file;
  size_t window = 512;
  size_t most_windows = 0;
  bool json = false;
};

/// Sums -log p of the tokens that follow positions in the second half of a window: those have enough context.
class Likelihood final : public LogitSink {
 public:
  void start(std::span<const int32_t> tokens, size_t first) {
    tokens_ = tokens;
    first_ = first;
  }
  void logits(size_t position, std::span<const float> values) override {
    if (position + 1 >= tokens_.size() || position < first_) return;
    const float largest = *std::max_element(values.begin(), values.end());
    double sum = 0;
    for (const float value : values) sum += std::exp(static_cast<double>(value - largest));
    const double nll =
        std::log(sum) + static_cast<double>(largest - values[static_cast<size_t>(tokens_[position + 1])]);
    sum_ += nll;
    squares_ += nll * nll;
    ++count_;
  }
  size_t count() const { return count_; }
  double mean() const { return sum_ / static_cast<double>(count_); }
  /// Standard error of the mean.
  double error() const {
    const double n = static_cast<double>(count_);
    return count_ < 2 ? 0 : std::sqrt(std::max(0.0, squares_ / n - mean() * mean()) / (n - 1));
  }

 private:
  std::span<const int32_t> tokens_;
  size_t first_ = 0;
  double sum_ = 0;
  double squares_ = 0;
  size_t count_ = 0;
};

int run_perplexity(PerplexityFlags& flags) {
  bool given = false;
  const Result<std::string> text = read_prompt("", flags.file, kMostTextBytes, &given);
  if (!text.ok()) return fail(text.status());
  if (flags.model.engine.context > 0) flags.window = flags.model.engine.context;
  constexpr size_t kLeastWindow = 8;
  if (flags.window < kLeastWindow) {
    return fail(Status(Code::kInvalidArgument, "windows of " + std::to_string(flags.window) +
                                                   " tokens are too short - use -c 8 or more"));
  }
  flags.model.engine.context = flags.window;
  flags.model.engine.logit_rows = 8;
  Result<std::unique_ptr<Engine>> engine = open_engine(flags.model);
  if (!engine.ok()) return fail(engine.status());
  const TextModel& model = engine.value()->text();
  const Result<std::vector<int32_t>> encoded = model.encode(text.value(), true, false);
  if (!encoded.ok()) return fail(encoded.status());
  std::vector<int32_t> tokens = encoded.value();
  if (tokens.size() < 2) return fail(Status(Code::kInvalidArgument, "the text has fewer than two tokens"));
  Result<std::unique_ptr<Session>> session = engine.value()->new_session();
  if (!session.ok()) return fail(session.status());
  const size_t window = std::min(flags.window, tokens.size());
  const size_t windows = tokens.size() / window;
  Likelihood likelihood;
  for (size_t i = 0; i < windows && (flags.most_windows == 0 || i < flags.most_windows); ++i) {
    std::vector<int32_t> part(tokens.begin() + static_cast<ptrdiff_t>(i * window),
                              tokens.begin() + static_cast<ptrdiff_t>((i + 1) * window));
    if (model.adds_bos()) part[0] = model.bos();
    likelihood.start(part, windows == 1 && tokens.size() < flags.window ? 0 : window / 2);
    session.value()->reset();
    const Status status = session.value()->evaluate(part, &interrupted(), &likelihood);
    if (!status.ok()) return fail(status);
    if (!flags.model.quiet) {
      std::fprintf(stderr, "[%zu/%zu] %.4f\n", i + 1, windows, std::exp(likelihood.mean()));
    }
  }
  if (likelihood.count() == 0 || !std::isfinite(likelihood.mean())) {
    return fail(Status(Code::kInternal, "the model gave logits that are no numbers - verify the file"));
  }
  const double perplexity = std::exp(likelihood.mean());
  std::string out;
  if (flags.json) {
    out = nlohmann::ordered_json({{"model", flags.model.engine.model_path},
                                  {"tokens", tokens.size()},
                                  {"scored_tokens", likelihood.count()},
                                  {"window", window},
                                  {"mean_nll", likelihood.mean()},
                                  {"perplexity", perplexity},
                                  {"perplexity_error", perplexity * likelihood.error()}})
              .dump(1) +
          "\n";
  } else {
    char line[160];
    std::snprintf(line, sizeof line, "perplexity %.4f +/- %.4f (%zu of %zu tokens scored, windows of %zu)\n",
                  perplexity, perplexity * likelihood.error(), likelihood.count(), tokens.size(), window);
    out = line;
  }
  const Status written = write_out(out);
  return written.ok() ? 0 : fail(written);
}

}  // namespace

void register_logits(CLI::App& app, CommandBody* body) {
  CLI::App* command = app.add_subcommand("logits", "Write the logits after given tokens, for tests");
  auto flags = std::make_shared<LogitsFlags>();
  flags->model.add_to(*command);
  command->add_option("--tokens", flags->tokens, "Token ids, separated by commas")
      ->delimiter(',')
      ->check(CLI::NonNegativeNumber)
      ->required();
  command->add_option("--positions", flags->positions, "Positions to write (default: the last)")
      ->delimiter(',');
  command->add_option("-o,--output", flags->output, "File for the rows: float32, little-endian")->required();
  command->callback([flags, body] { *body = [flags] { return run_logits(*flags); }; });
}

void register_perplexity(CLI::App& app, CommandBody* body) {
  CLI::App* command = app.add_subcommand("perplexity", "Measure how well a model predicts a text");
  auto flags = std::make_shared<PerplexityFlags>();
  flags->model.add_to(*command);
  command->add_option("-f,--file", flags->file,
                      "Text (default: standard input); -c sets the window, 512 by default");
  command->add_option("--chunks", flags->most_windows, "Windows to evaluate at most (0: all)");
  command->add_flag("--json", flags->json, "Print JSON");
  command->callback([flags, body] { *body = [flags] { return run_perplexity(*flags); }; });
}

}  // namespace ganglion::cli

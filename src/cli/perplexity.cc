// `ganglion perplexity`: how well a model predicts a text, and how far it is from another one (--against), as
// a pack is from its source.
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "ganglion/divergence.h"

namespace ganglion::cli {

namespace {

using nlohmann::ordered_json;

constexpr size_t kMostTextBytes = size_t{256} << 20;

struct PerplexityFlags {
  ModelFlags model;
  std::string file;
  std::string against;
  size_t window = 512;
  size_t most_windows = 0;
  bool recall = true;
  bool json = false;
};

/// A mean that knows its standard error.
class Mean {
 public:
  void add(double value) {
    sum_ += value;
    squares_ += value * value;
    ++count_;
  }
  size_t count() const { return count_; }
  double value() const { return sum_ / static_cast<double>(count_); }
  double error() const {
    const double n = static_cast<double>(count_);
    return count_ < 2 ? 0 : std::sqrt(std::max(0.0, squares_ / n - value() * value()) / (n - 1));
  }

 private:
  double sum_ = 0;
  double squares_ = 0;
  size_t count_ = 0;
};

/// Scores the tokens that follow positions in the second half of a window: those have enough context.
class Score final : public LogitSink {
 public:
  /// `base`: written to, or compared with; may be null.
  Score(ProbabilityFile* base, bool compare) : base_(base), compare_(compare) {}
  void start(std::span<const int32_t> tokens, size_t first) {
    tokens_ = tokens;
    first_ = first;
  }
  void logits(size_t position, std::span<const float> values) override {
    if (position + 1 >= tokens_.size() || position < first_) return;
    log_softmax(values, &log_p_);
    nll_.add(-static_cast<double>(log_p_[static_cast<size_t>(tokens_[position + 1])]));
    if (base_ == nullptr || broken_) return;
    if (!compare_) {
      broken_ = !base_->try_write(log_p_);
      return;
    }
    base_p_.resize(log_p_.size());
    broken_ = !base_->try_read(&base_p_);
    divergence_.add(kl_divergence(base_p_, log_p_));
    same_top_.add(most_likely(log_p_) == most_likely(base_p_) ? 1 : 0);
  }
  const Mean& nll() const { return nll_; }
  const Mean& divergence() const { return divergence_; }
  const Mean& same_top() const { return same_top_; }
  bool broken() const { return broken_; }

 private:
  ProbabilityFile* base_;
  bool compare_;
  std::span<const int32_t> tokens_;
  size_t first_ = 0;
  std::vector<float> log_p_;
  std::vector<float> base_p_;
  bool broken_ = false;
  Mean nll_;
  Mean divergence_;
  Mean same_top_;
};

struct Windows {
  size_t tokens = 0;
  size_t window = 0;
  std::vector<NeuronRecall> recall;  ///< By layer; empty: not measured.
};

/// One model over the text. A pack sees the first half of a window as a prompt and the rest as if it had
/// written it.
Status score_text(PerplexityFlags& flags, const std::string& path, const std::string& text, Score* score,
                  Windows* windows) {
  ModelFlags model_flags = flags.model;
  model_flags.engine.model_path = path;
  Result<std::unique_ptr<Engine>> engine = open_engine(model_flags);
  if (!engine.ok()) return engine.status();
  const TextModel& model = engine.value()->text();
  Result<std::vector<int32_t>> encoded = model.encode(text, true, false);
  if (!encoded.ok()) return encoded.status();
  const std::vector<int32_t> tokens = encoded.take();
  if (tokens.size() < 2) return Status(Code::kInvalidArgument, "the text has fewer than two tokens");
  Result<std::unique_ptr<Session>> session = engine.value()->new_session();
  if (!session.ok()) return session.status();
  const size_t window = std::min(flags.window, tokens.size());
  const size_t count = tokens.size() / window;
  *windows = {tokens.size(), window, {}};
  if (flags.recall && engine.value()->plan().sparsity == "predictors")
    engine.value()->set_recall_sink(&windows->recall);
  for (size_t i = 0; i < count && (flags.most_windows == 0 || i < flags.most_windows); ++i) {
    std::vector<int32_t> part(tokens.begin() + static_cast<ptrdiff_t>(i * window),
                              tokens.begin() + static_cast<ptrdiff_t>((i + 1) * window));
    if (model.adds_bos()) part[0] = model.bos();
    const size_t first = count == 1 && tokens.size() < flags.window ? 0 : window / 2;
    score->start(part, first);
    session.value()->reset();
    const std::span<const int32_t> all(part);
    Status status = first > 0 ? session.value()->evaluate(all.first(first), &interrupted()) : ok_status();
    if (status.ok())
      status = session.value()->evaluate(all.subspan(first), &interrupted(), score, Phase::kGeneration);
    tell_of_lost_device(*engine.value());
    if (status.ok() && score->broken())
      status = Status(Code::kIo, "cannot keep the base model's probabilities in a temporary file");
    if (!status.ok()) return status;
    if (!model_flags.quiet) {
      std::fprintf(stderr, "[%zu/%zu] %.4f\n", i + 1, count, std::exp(score->nll().value()));
    }
  }
  if (score->nll().count() == 0 || !std::isfinite(score->nll().value())) {
    return Status(Code::kInternal, "the model gave logits that are no numbers - verify the file");
  }
  return ok_status();
}

double share(double part, double whole) {
  return whole > 0 ? part / whole : 1;
}

ordered_json recall_json(const std::vector<NeuronRecall>& layers) {
  ordered_json out = ordered_json::array();
  for (const NeuronRecall& layer : layers) {
    if (layer.predicted == 0) {
      out.push_back(nullptr);
      continue;
    }
    const auto fired = static_cast<double>(layer.fired);
    out.push_back({{"recall", share(static_cast<double>(layer.found), fired)},
                   {"mass_recall", share(layer.found_mass, layer.mass)},
                   {"over_prediction", share(static_cast<double>(layer.predicted), fired)}});
  }
  return out;
}

std::string recall_text(const std::vector<NeuronRecall>& layers) {
  std::string text;
  for (size_t i = 0; i < layers.size(); ++i) {
    const NeuronRecall& layer = layers[i];
    if (layer.predicted == 0) continue;  // Without a predictor: all gates are computed.
    const auto fired = static_cast<double>(layer.fired);
    char line[160];
    std::snprintf(
        line, sizeof line,
        "layer %zu: %.2f %% of the neurons that fire are predicted, %.2f %% of their mass, with %.2f "
        "predicted for each\n",
        i, 100 * share(static_cast<double>(layer.found), fired), 100 * share(layer.found_mass, layer.mass),
        share(static_cast<double>(layer.predicted), fired));
    text += line;
  }
  return text;
}

std::string report(const PerplexityFlags& flags, const Windows& windows, const Score& score,
                   const Score& base) {
  const double perplexity = std::exp(score.nll().value());
  const double base_perplexity = flags.against.empty() ? 0 : std::exp(base.nll().value());
  if (flags.json) {
    ordered_json out = {{"model", flags.model.engine.model_path},
                        {"tokens", windows.tokens},
                        {"scored_tokens", score.nll().count()},
                        {"window", windows.window},
                        {"mean_nll", score.nll().value()},
                        {"perplexity", perplexity},
                        {"perplexity_error", perplexity * score.nll().error()}};
    if (!flags.against.empty()) {
      out["against"] = flags.against;
      out["against_perplexity"] = base_perplexity;
      out["kl_divergence"] = score.divergence().value();
      out["kl_divergence_error"] = score.divergence().error();
      out["same_top"] = score.same_top().value();
      if (!windows.recall.empty()) out["layers"] = recall_json(windows.recall);
    }
    return out.dump(1) + "\n";
  }
  char line[320];
  std::snprintf(line, sizeof line, "perplexity %.4f +/- %.4f (%zu of %zu tokens scored, windows of %zu)\n",
                perplexity, perplexity * score.nll().error(), score.nll().count(), windows.tokens,
                windows.window);
  std::string text = line;
  if (!flags.against.empty()) {
    std::snprintf(line, sizeof line,
                  "against %s: perplexity %.4f there, KL divergence %.5f +/- %.5f nat, same most likely "
                  "token %.2f %%\n",
                  flags.against.c_str(), base_perplexity, score.divergence().value(),
                  score.divergence().error(), 100 * score.same_top().value());
    text += line + recall_text(windows.recall);
  }
  return text;
}

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
  ProbabilityFile probabilities;
  ProbabilityFile* kept = flags.against.empty() ? nullptr : &probabilities;
  Score base(kept, false);
  Score score(kept, true);
  Windows windows;
  if (kept != nullptr) {
    PerplexityFlags of_base = flags;
    of_base.recall = false;
    const Status status = score_text(of_base, flags.against, text.value(), &base, &windows);
    if (!status.ok()) return fail(status);
    kept->rewind();
  }
  flags.recall = flags.recall && kept != nullptr;
  const Status status = score_text(flags, flags.model.engine.model_path, text.value(), &score, &windows);
  if (!status.ok()) return fail(status);
  const Status written = write_out(report(flags, windows, score, base));
  return written.ok() ? 0 : fail(written);
}

}  // namespace

void register_perplexity(CLI::App& app, CommandBody* body) {
  CLI::App* command = app.add_subcommand("perplexity", "Measure how well a model predicts a text");
  auto flags = std::make_shared<PerplexityFlags>();
  flags->model.add_to(*command);
  command->add_option("-f,--file", flags->file,
                      "Text (default: standard input); -c sets the window, 512 by default");
  command->add_option("--against", flags->against,
                      "Also compare with this model: KL divergence, agreement (a pack against its source)");
  command->add_option("--chunks", flags->most_windows, "Windows to evaluate at most (0: all)");
  command->add_flag("!--no-recall", flags->recall,
                    "With --against: do not measure what the predictors of a pack find (faster: it takes all "
                    "neurons)");
  command->add_flag("--json", flags->json, "Print JSON");
  command->callback([flags, body] { *body = [flags] { return run_perplexity(*flags); }; });
}

}  // namespace ganglion::cli

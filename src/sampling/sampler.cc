// The chain: bias and filter, then the steps in the order asked for, then a draw.
#include <sys/random.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <limits>
#include <utility>

#include "base/status.h"
#include "base/units.h"
#include "ganglion/sampling.h"
#include "sampling/candidates.h"
#include "sampling/history.h"
#include "sampling/mirostat.h"
#include "sampling/options.h"
#include "sampling/random.h"
#include "sampling/steps.h"

namespace ganglion {
namespace {

using base::format;
using sampling::Candidate;
using sampling::Candidates;
using sampling::Step;

/// 32 bits, so that people can read and type it.
uint64_t random_seed() {
  uint32_t seed = 0;
  if (getrandom(&seed, sizeof(seed), 0) != static_cast<ssize_t>(sizeof(seed))) {
    seed = static_cast<uint32_t>(std::time(nullptr));
  }
  return seed;
}

/// One entry per token, ascending.
std::vector<LogitBias> merge_biases(std::vector<LogitBias> biases) {
  std::stable_sort(biases.begin(), biases.end(),
                   [](const LogitBias& a, const LogitBias& b) { return a.token < b.token; });
  std::vector<LogitBias> merged;
  for (const LogitBias& bias : biases) {
    if (merged.empty() || merged.back().token != bias.token) {
      merged.push_back(bias);
    } else {
      merged.back().bias += bias.bias;
    }
  }
  return merged;
}

double wide(float value) {
  return static_cast<double>(value);
}

/// The number that users know a step by.
double main_value(const SamplingOptions& options, Step step) {
  switch (step) {
    case Step::kPenalties:
      return wide(options.repeat_penalty);
    case Step::kDry:
      return wide(options.dry_multiplier);
    case Step::kTopNSigma:
      return wide(options.top_n_sigma);
    case Step::kTopK:
      return options.top_k;
    case Step::kTypP:
      return wide(options.typical_p);
    case Step::kTopP:
      return wide(options.top_p);
    case Step::kMinP:
      return wide(options.min_p);
    case Step::kXtc:
      return wide(options.xtc_probability);
    case Step::kTemperature:
      return wide(options.temperature);
  }
  return 0;
}

int64_t wider(int64_t a, int64_t b) {
  return a < 0 || b < 0 ? -1 : std::max(a, b);
}

}  // namespace

struct Sampler::Parts {
  Parts(const SamplingOptions& asked, size_t vocab, const TokenBytes* token_bytes, TokenFilter* token_filter);

  bool greedy() const { return options.temperature < sampling::kGreedyTemperature; }
  bool has(Step step) const { return std::find(steps.begin(), steps.end(), step) != steps.end(); }
  bool is_on(Step step) const;
  size_t min_keep() const { return static_cast<size_t>(options.min_keep); }

  Status fill(std::span<const float> logits);
  void apply_bias(std::span<float> logits) const;
  void apply(Step step);
  size_t choose();
  void report(const Candidate& chosen);

  SamplingOptions options;
  std::vector<Step> steps;
  std::vector<LogitBias> biases;
  size_t vocab_size;
  TokenFilter* filter;
  uint64_t seed;
  sampling::Random random;
  Candidates candidates;
  sampling::History history;
  sampling::Penalties penalties;
  sampling::Dry dry;
  sampling::TypicalP typical;
  sampling::Mirostat mirostat;
  std::vector<float> work;  ///< Logits that bias and filter may change; empty where there is neither.
  SampledProbs probs;
};

namespace {

sampling::PenaltyOptions penalty_options(const SamplingOptions& options) {
  return {.window = options.repeat_last_n,
          .repeat = options.repeat_penalty,
          .presence = options.presence_penalty,
          .frequency = options.frequency_penalty};
}

sampling::DryOptions dry_options(const SamplingOptions& options) {
  return {.window = options.dry_penalty_last_n,
          .multiplier = options.dry_multiplier,
          .base = options.dry_base,
          .allowed_length = static_cast<size_t>(options.dry_allowed_length)};
}

int64_t history_window(const SamplingOptions& options) {
  const auto penalties = penalty_options(options);
  const auto dry = dry_options(options);
  return wider(penalties.enabled() ? penalties.window : 0, dry.enabled() ? dry.window : 0);
}

sampling::MirostatOptions mirostat_options(const SamplingOptions& options, size_t vocab) {
  return {.version = options.mirostat,
          .tau = options.mirostat_tau,
          .eta = options.mirostat_eta,
          .vocab_size = vocab};
}

}  // namespace

Sampler::Parts::Parts(const SamplingOptions& asked, size_t vocab, const TokenBytes* token_bytes,
                      TokenFilter* token_filter)
    : options(asked),
      steps(sampling::parse_steps(asked.samplers).take()),
      biases(merge_biases(asked.logit_bias)),
      vocab_size(vocab),
      filter(token_filter),
      seed(asked.seed < 0 ? random_seed() : static_cast<uint64_t>(asked.seed)),
      random(seed),
      candidates(vocab),
      history(history_window(asked),
              dry_options(asked).enabled() ? asked.dry_sequence_breakers : std::vector<std::string>(),
              token_bytes),
      penalties(penalty_options(asked)),
      dry(dry_options(asked)),
      mirostat(mirostat_options(asked, vocab)) {
  if (filter != nullptr || !biases.empty()) work.reserve(vocab);
  probs.top.reserve(std::min(static_cast<size_t>(options.n_probs), vocab));
}

bool Sampler::Parts::is_on(Step step) const {
  const bool cuts = !greedy() && options.mirostat == 0;
  switch (step) {
    case Step::kPenalties:
      return penalty_options(options).enabled();
    case Step::kDry:
      return dry_options(options).enabled();
    case Step::kTopNSigma:
      return cuts && options.top_n_sigma > 0;
    case Step::kTopK:
      return cuts && options.top_k > 0;
    case Step::kTypP:
      return cuts && options.typical_p < 1;
    case Step::kTopP:
      return cuts && options.top_p < 1;
    case Step::kMinP:
      return cuts && options.min_p > 0;
    case Step::kXtc:
      return cuts && options.xtc_probability > 0 && options.xtc_threshold <= 0.5F;
    case Step::kTemperature:
      return !greedy();
  }
  return false;
}

void Sampler::Parts::apply_bias(std::span<float> logits) const {
  for (const LogitBias& bias : biases) {
    float& logit = logits[static_cast<size_t>(bias.token)];
    if (std::isinf(bias.bias)) {
      logit = -std::numeric_limits<float>::infinity();
    } else if (std::isfinite(logit)) {
      logit = sampling::finite_float(static_cast<double>(logit) + static_cast<double>(bias.bias));
    }
  }
}

Status Sampler::Parts::fill(std::span<const float> logits) {
  if (logits.size() != vocab_size) {
    return {Code::kInternal,
            format("sampling: %zu logits for a vocabulary of %zu", logits.size(), vocab_size)};
  }
  if (filter == nullptr && biases.empty()) {
    candidates.assign(logits);
  } else {
    work.assign(logits.begin(), logits.end());
    apply_bias(work);
    if (filter != nullptr) GANGLION_RETURN_IF_ERROR(filter->mask(work));
    candidates.assign(work);
  }
  if (!candidates.empty()) return base::ok_status();
  const auto finite = std::count_if(logits.begin(), logits.end(), [](float x) { return std::isfinite(x); });
  if (finite == 0) {
    return {Code::kInternal, format("sampling: none of %zu logits is finite - the model file or a kernel is "
                                    "damaged, try another --isa or check the file",
                                    logits.size())};
  }
  return {Code::kInvalidArgument, format("sampling: no token left: logit_bias%s forbid all of %zu",
                                         filter == nullptr ? "" : " and grammar", logits.size())};
}

void Sampler::Parts::apply(Step step) {
  switch (step) {
    case Step::kPenalties:
      penalties.apply(candidates, history);
      break;
    case Step::kDry:
      dry.apply(candidates, history);
      break;
    case Step::kTopNSigma:
      sampling::top_n_sigma(candidates, options.top_n_sigma);
      break;
    case Step::kTopK:
      sampling::top_k(candidates, static_cast<size_t>(options.top_k));
      break;
    case Step::kTypP:
      typical.apply(candidates, options.typical_p, min_keep());
      break;
    case Step::kTopP:
      sampling::top_p(candidates, options.top_p, min_keep());
      break;
    case Step::kMinP:
      sampling::min_p(candidates, options.min_p, min_keep());
      break;
    case Step::kXtc:
      sampling::xtc(candidates,
                    {.probability = options.xtc_probability,
                     .threshold = options.xtc_threshold,
                     .min_keep = min_keep()},
                    random);
      break;
    case Step::kTemperature:
      sampling::temperature(candidates, {.temperature = options.temperature,
                                         .range = options.dynatemp_range,
                                         .exponent = options.dynatemp_exponent});
      break;
  }
}

size_t Sampler::Parts::choose() {
  if (greedy()) {
    candidates.sort_first(1);
    candidates.keep_first(1);
    return 0;
  }
  if (options.mirostat != 0) return mirostat.choose(candidates, random);
  return sampling::draw(candidates, candidates.softmax(), random.uniform());
}

void Sampler::Parts::report(const Candidate& chosen) {
  const sampling::Softmax softmax = candidates.softmax();
  const auto entry = [&](const Candidate& item) {
    return TokenLogProb{item.token, static_cast<float>(softmax.log_probability(item.logit))};
  };
  probs.chosen = entry(chosen);
  const size_t count = std::min(static_cast<size_t>(options.n_probs), candidates.size());
  candidates.sort_first(count);
  probs.top.clear();
  for (const Candidate& item : candidates.items().first(count)) probs.top.push_back(entry(item));
}

Result<std::unique_ptr<Sampler>> Sampler::create(const SamplingOptions& options, int32_t vocab_size,
                                                 const TokenBytes* token_bytes, TokenFilter* filter) {
  GANGLION_RETURN_IF_ERROR(options.validate());
  if (vocab_size <= 0) {
    return Status(Code::kInvalidArgument, format("sampling: a vocabulary of %d tokens", vocab_size));
  }
  for (const LogitBias& bias : options.logit_bias) {
    if (bias.token >= vocab_size) {
      return Status(Code::kInvalidArgument,
                    format("logit_bias: token %d: must be below %d", bias.token, vocab_size));
    }
  }
  const bool needs_bytes = dry_options(options).enabled() && !options.dry_sequence_breakers.empty();
  if (needs_bytes && token_bytes == nullptr) {
    return Status(Code::kInvalidArgument,
                  "dry_sequence_breakers: cannot be found without the bytes of tokens");
  }
  auto parts = std::make_unique<Parts>(options, static_cast<size_t>(vocab_size), token_bytes, filter);
  return std::make_unique<Sampler>(std::move(parts));
}

Sampler::Sampler(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}
Sampler::~Sampler() = default;

Result<int32_t> Sampler::sample(std::span<const float> logits) {
  Parts& parts = *parts_;
  GANGLION_RETURN_IF_ERROR(parts.fill(logits));
  for (const Step step : parts.steps) {
    if (parts.is_on(step)) parts.apply(step);
  }
  const Candidate chosen = parts.candidates[parts.choose()];
  if (parts.options.n_probs > 0 && parts.options.post_sampling_probs) {
    parts.report(chosen);
  } else if (parts.options.n_probs > 0) {
    parts.candidates.assign(logits);
    parts.report({chosen.token, logits[static_cast<size_t>(chosen.token)]});
  }
  return chosen.token;
}

Status Sampler::accept(int32_t token) {
  parts_->history.add(token);
  return parts_->filter == nullptr ? base::ok_status() : parts_->filter->accept(token);
}

void Sampler::add_prompt(std::span<const int32_t> tokens) {
  for (const int32_t token : tokens) parts_->history.add(token);
}

void Sampler::reset() {
  parts_->history.clear();
  parts_->random = sampling::Random(parts_->seed);
  parts_->mirostat.reset();
  parts_->probs.chosen = {};
  parts_->probs.top.clear();
  if (parts_->filter != nullptr) parts_->filter->reset();
}

uint64_t Sampler::seed() const {
  return parts_->seed;
}
const SampledProbs& Sampler::probs() const {
  return parts_->probs;
}

std::string Sampler::describe() const {
  const SamplingOptions& options = parts_->options;
  std::string text;
  const auto add = [&text](const std::string& step) { text.append(text.empty() ? "" : " -> ").append(step); };
  if (!parts_->biases.empty()) add("logit_bias " + std::to_string(parts_->biases.size()));
  if (parts_->filter != nullptr) add("grammar");
  for (const Step step : parts_->steps) {
    if (!parts_->is_on(step)) continue;
    if (step == Step::kPenalties) {
      add(format("penalties repeat %g presence %g frequency %g last %d", wide(options.repeat_penalty),
                 wide(options.presence_penalty), wide(options.frequency_penalty), options.repeat_last_n));
    } else {
      add(std::string(sampling::step_name(step)) + format(" %g", main_value(options, step)));
    }
  }
  if (parts_->greedy()) {
    add("greedy");
  } else {
    add(options.mirostat != 0 ? format("mirostat %d", options.mirostat) : "draw");
    add("seed " + std::to_string(parts_->seed));
  }
  return text;
}

size_t Sampler::memory_bytes() const {
  const Parts& parts = *parts_;
  return sizeof(Parts) + parts.candidates.memory_bytes() + parts.work.capacity() * sizeof(float) +
         parts.history.memory_bytes() + parts.penalties.memory_bytes() + parts.dry.memory_bytes() +
         parts.typical.memory_bytes() + parts.probs.top.capacity() * sizeof(TokenLogProb);
}

}  // namespace ganglion

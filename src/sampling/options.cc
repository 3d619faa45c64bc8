// Validation of SamplingOptions: the only place where values from users are judged.
#include "sampling/options.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string>

#include "base/units.h"
#include "ganglion/sampling.h"

namespace ganglion::sampling {
namespace {

using base::Code;
using base::format;
using base::Result;
using base::Status;

struct StepName {
  std::string_view name;
  Step step;
};
constexpr std::array kStepNames = {
    StepName{"penalties", Step::kPenalties},
    StepName{"dry", Step::kDry},
    StepName{"top_n_sigma", Step::kTopNSigma},
    StepName{"top_k", Step::kTopK},
    StepName{"typ_p", Step::kTypP},
    StepName{"top_p", Step::kTopP},
    StepName{"min_p", Step::kMinP},
    StepName{"xtc", Step::kXtc},
    StepName{"temperature", Step::kTemperature},
    // Other spellings in use.
    StepName{"typical_p", Step::kTypP},
    StepName{"temp", Step::kTemperature},
};

Status invalid(std::string message) {
  return {Code::kInvalidArgument, std::move(message)};
}

struct FloatRange {
  const char* name;
  float value;
  double lowest;
  double highest;
  const char* expected;
};

Status check_float(const FloatRange& range) {
  const bool fits = std::isfinite(range.value) && static_cast<double>(range.value) >= range.lowest &&
                    static_cast<double>(range.value) <= range.highest;
  if (fits) return base::ok_status();
  return invalid(format("%s: %g: must be %s", range.name, static_cast<double>(range.value), range.expected));
}

struct IntRange {
  const char* name;
  int64_t value;
  int64_t lowest;
  int64_t highest;
  const char* expected;
};

Status check_int(const IntRange& range) {
  if (range.value >= range.lowest && range.value <= range.highest) return base::ok_status();
  return invalid(
      format("%s: %lld: must be %s", range.name, static_cast<long long>(range.value), range.expected));
}

Status check_floats(const SamplingOptions& options) {
  constexpr double kMax = std::numeric_limits<float>::max();
  constexpr double kTiny = std::numeric_limits<float>::min();
  const FloatRange ranges[] = {
      {"temperature", options.temperature, -kMax, kMax, "a finite number"},
      {"dynatemp_range", options.dynatemp_range, 0, kMax, "0 or more"},
      {"dynatemp_exponent", options.dynatemp_exponent, 0, kMax, "0 or more"},
      {"top_p", options.top_p, 0, 1, "from 0 to 1"},
      {"min_p", options.min_p, 0, 1, "from 0 to 1"},
      {"typical_p", options.typical_p, 0, 1, "from 0 to 1"},
      {"top_n_sigma", options.top_n_sigma, -kMax, kMax, "a finite number"},
      {"repeat_penalty", options.repeat_penalty, kTiny, kMax, "above 0"},
      {"presence_penalty", options.presence_penalty, -kMax, kMax, "a finite number"},
      {"frequency_penalty", options.frequency_penalty, -kMax, kMax, "a finite number"},
      {"dry_multiplier", options.dry_multiplier, 0, kMax, "0 or more"},
      {"dry_base", options.dry_base, 1, kMax, "1 or more"},
      {"xtc_probability", options.xtc_probability, 0, 1, "from 0 to 1"},
      {"xtc_threshold", options.xtc_threshold, 0, 1, "from 0 to 1"},
      {"mirostat_tau", options.mirostat_tau, 0, kMax, "0 or more"},
      {"mirostat_eta", options.mirostat_eta, 0, 1, "from 0 to 1"},
  };
  for (const FloatRange& range : ranges) GANGLION_RETURN_IF_ERROR(check_float(range));
  return base::ok_status();
}

Status check_ints(const SamplingOptions& options) {
  constexpr int64_t kMax = std::numeric_limits<int32_t>::max();
  constexpr int64_t kMaxSeed = std::numeric_limits<int64_t>::max();
  const IntRange ranges[] = {
      {"top_k", options.top_k, -1, kMax, "0 or -1 (off) or more"},
      {"min_keep", options.min_keep, 0, kMax, "0 or more"},
      {"repeat_last_n", options.repeat_last_n, -1, kMax, "-1 (all) or more"},
      {"dry_allowed_length", options.dry_allowed_length, 0, kMax, "0 or more"},
      {"dry_penalty_last_n", options.dry_penalty_last_n, -1, kMax, "-1 (all) or more"},
      {"mirostat", options.mirostat, 0, 2, "0, 1 or 2"},
      {"seed", options.seed, -1, kMaxSeed, "-1 (random) or more"},
      {"n_probs", options.n_probs, 0, kMax, "0 or more"},
  };
  for (const IntRange& range : ranges) GANGLION_RETURN_IF_ERROR(check_int(range));
  return base::ok_status();
}

/// Each token looks for every breaker, so that both number and length are bounded.
Status check_breakers(const std::vector<std::string>& breakers) {
  constexpr size_t kMaxCount = 256;
  constexpr size_t kMaxBytes = 256;
  if (breakers.size() > kMaxCount) {
    return invalid(format("dry_sequence_breakers: %zu strings: at most %zu", breakers.size(), kMaxCount));
  }
  for (const std::string& breaker : breakers) {
    if (breaker.empty() || breaker.size() > kMaxBytes) {
      return invalid(format("dry_sequence_breakers: a string of %zu bytes: must have 1 to %zu",
                            breaker.size(), kMaxBytes));
    }
  }
  return base::ok_status();
}

Status check_bias(const std::vector<LogitBias>& biases) {
  for (const LogitBias& bias : biases) {
    const bool bans = std::isinf(bias.bias) && bias.bias < 0;
    if (bias.token < 0) return invalid(format("logit_bias: token %d: must be 0 or more", bias.token));
    if (!bans && !std::isfinite(bias.bias)) {
      return invalid(format("logit_bias: token %d: %g: must be finite or -infinity", bias.token,
                            static_cast<double>(bias.bias)));
    }
  }
  return base::ok_status();
}

}  // namespace

std::string_view step_name(Step step) {
  for (const StepName& entry : kStepNames) {
    if (entry.step == step) return entry.name;
  }
  return "unknown";
}

Result<std::vector<Step>> parse_steps(std::string_view samplers) {
  std::vector<Step> steps;
  while (!samplers.empty()) {
    const std::string_view name = samplers.substr(0, samplers.find(';'));
    samplers.remove_prefix(std::min(name.size() + 1, samplers.size()));
    const auto* found = std::find_if(kStepNames.begin(), kStepNames.end(),
                                     [name](const StepName& entry) { return entry.name == name; });
    if (found == kStepNames.end()) {
      std::string known;
      for (const StepName& entry : kStepNames) known.append(known.empty() ? "" : ", ").append(entry.name);
      return invalid(format("samplers: '%.*s': must be of %s",
                            static_cast<int>(std::min<size_t>(name.size(), 64)), name.data(), known.c_str()));
    }
    if (std::find(steps.begin(), steps.end(), found->step) != steps.end()) {
      return invalid(
          format("samplers: '%.*s': must not be there twice", static_cast<int>(name.size()), name.data()));
    }
    steps.push_back(found->step);
  }
  return steps;
}

}  // namespace ganglion::sampling

namespace ganglion {

Status SamplingOptions::validate() const {
  GANGLION_RETURN_IF_ERROR(sampling::check_floats(*this));
  GANGLION_RETURN_IF_ERROR(sampling::check_ints(*this));
  GANGLION_RETURN_IF_ERROR(sampling::check_breakers(dry_sequence_breakers));
  GANGLION_RETURN_IF_ERROR(sampling::check_bias(logit_bias));
  return sampling::parse_steps(samplers).status();
}

}  // namespace ganglion

#include "cli/sampling_flags.h"

#include <limits>

namespace ganglion::cli {

void SamplingFlags::add_to(CLI::App& app) {
  SamplingOptions& o = options;
  const auto add = [&](const char* names, auto& value, const char* help) {
    app.add_option(names, value, help)->capture_default_str()->group("Sampling");
  };
  add("-s,--seed", o.seed, "Seed (-1: random)");
  add("--temp,--temperature", o.temperature, "Temperature; 0 is greedy");
  add("--top-k", o.top_k, "Keep the k best (0: off)");
  add("--top-p", o.top_p, "Keep the best that sum to p (1: off)");
  add("--min-p", o.min_p, "Drop below this share of the best (0: off)");
  add("--typical,--typical-p", o.typical_p, "Locally typical share (1: off)");
  add("--top-nsigma,--top-n-sigma", o.top_n_sigma, "Keep within n standard deviations of the best (-1: off)");
  add("--min-keep", o.min_keep, "Candidates that cut-offs leave at least");
  add("--repeat-penalty", o.repeat_penalty, "Penalty on repeated tokens (1: off)");
  add("--repeat-last-n", o.repeat_last_n, "Tokens that penalties look back (0: off, -1: all)");
  add("--presence-penalty", o.presence_penalty, "Penalty on tokens that occurred");
  add("--frequency-penalty", o.frequency_penalty, "Penalty by how often a token occurred");
  add("--dry-multiplier", o.dry_multiplier, "Strength of the DRY penalty (0: off)");
  add("--dry-base", o.dry_base, "Growth of the DRY penalty with the length repeated");
  add("--dry-allowed-length", o.dry_allowed_length, "Repeated length without DRY penalty");
  add("--dry-penalty-last-n", o.dry_penalty_last_n, "Tokens that DRY looks back (0: off, -1: all)");
  app.add_option("--dry-sequence-breaker", o.dry_sequence_breakers, "Strings that end a DRY repetition")
      ->group("Sampling");
  add("--xtc-probability", o.xtc_probability, "Chance of excluding top choices (0: off)");
  add("--xtc-threshold", o.xtc_threshold, "Probability from which XTC excludes");
  add("--mirostat", o.mirostat, "Mirostat 1 or 2 (0: off)");
  add("--mirostat-ent", o.mirostat_tau, "Mirostat's target surprise");
  add("--mirostat-lr", o.mirostat_eta, "Mirostat's learning rate");
  add("--dynatemp-range", o.dynatemp_range, "Range of the dynamic temperature (0: off)");
  add("--dynatemp-exp", o.dynatemp_exponent, "Exponent of the dynamic temperature");
  add("--samplers", o.samplers, "Steps in order, separated by ';'");
  app.add_option("-l,--logit-bias", biases, "TOKEN+BIAS or TOKEN-BIAS (may be repeated)")->group("Sampling");
  app.add_flag("--ignore-eos", ignore_eos, "Never end the answer")->group("Sampling");
}

Status SamplingFlags::finish(const TextModel& text) {
  for (const std::string& bias : biases) {
    char* end = nullptr;
    const long token = std::strtol(bias.c_str(), &end, 10);
    char* rest = nullptr;
    const float value = std::strtof(end, &rest);
    if (end == bias.c_str() || (*end != '+' && *end != '-') || *rest != 0) {
      return Status(Code::kInvalidArgument, "--logit-bias '" + bias + "' is not TOKEN+BIAS or TOKEN-BIAS");
    }
    options.logit_bias.push_back({static_cast<int32_t>(token), value});
  }
  for (int32_t token = 0; ignore_eos && token < text.vocab_size(); ++token) {
    if (text.is_end_of_generation(token)) {
      options.logit_bias.push_back({token, -std::numeric_limits<float>::infinity()});
    }
  }
  return options.validate();
}

}  // namespace ganglion::cli

// Chooses the next token from logits: penalties, cut-offs, temperature, mirostat, a grammar's filter. Knows
// no model and no text beyond the bytes of single tokens. Used by cli/ and server/, one sampler per sequence.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ganglion/error.h"

namespace ganglion {

struct LogitBias {
  int32_t token = 0;
  float bias = 0;  ///< Added to the logit; -infinity forbids the token.
};

/// Names and defaults are those that users of llama.cpp's server know. Every value that means "off" costs
/// nothing.
struct SamplingOptions {
  /// Below 1e-6: greedy. Penalties, bias and filter still apply; ties go to the lowest id; nothing random is
  /// left.
  float temperature = 0.8F;
  float dynatemp_range = 0;  ///< Above 0: temperature +- range by the entropy of the candidates.
  float dynatemp_exponent = 1;
  int32_t top_k = 40;      ///< 0 or -1: off.
  float top_p = 0.95F;     ///< 1: off.
  float min_p = 0.05F;     ///< Relative to the best candidate; 0: off.
  float typical_p = 1;     ///< 1: off.
  float top_n_sigma = -1;  ///< In standard deviations of the logits; 0 or less: off.
  int32_t min_keep = 0;    ///< top_p, min_p, typical_p and XTC leave at least so many candidates.

  float repeat_penalty = 1;    ///< 1: off.
  int32_t repeat_last_n = 64;  ///< Window of the three penalties in tokens; 0: off, -1: the whole history.
  float presence_penalty = 0;
  float frequency_penalty = 0;

  float dry_multiplier = 0;  ///< 0: off.
  float dry_base = 1.75F;
  int32_t dry_allowed_length = 2;   ///< Continuing a repetition of so many tokens or more costs.
  int32_t dry_penalty_last_n = -1;  ///< Window in tokens; 0: off, -1: the whole history.
  std::vector<std::string> dry_sequence_breakers = {"\n", ":", "\"", "*"};  ///< Repetitions end at these.

  float xtc_probability = 0;   ///< 0: off.
  float xtc_threshold = 0.1F;  ///< Above 0.5: off.

  int32_t mirostat = 0;       ///< 1 or 2: replaces all steps but penalties, dry and temperature.
  float mirostat_tau = 5;     ///< Aimed surprise in bits.
  float mirostat_eta = 0.1F;  ///< Learning rate.

  int64_t seed = -1;                  ///< -1: a random one, see Sampler::seed().
  std::vector<LogitBias> logit_bias;  ///< Several for one token add up. A caller's "ignore_eos" bans here.
  /// Steps in order, separated by ';'. A step left out is off. Known: penalties dry top_n_sigma top_k typ_p
  /// top_p min_p xtc temperature.
  std::string samplers = "penalties;dry;top_n_sigma;top_k;typ_p;top_p;min_p;xtc;temperature";

  int32_t n_probs = 0;               ///< Candidates to report in Sampler::probs(); 0: none.
  bool post_sampling_probs = false;  ///< Report what was drawn from, not the model's own distribution.

  /// Errors: kInvalidArgument, "field: value: what it must be".
  Status validate() const;
};

/// The bytes a token stands for. Called on the thread that samples.
class TokenBytes {
 public:
  virtual ~TokenBytes() = default;
  /// Valid until the next call; empty for control tokens and out of range.
  virtual std::string_view bytes(int32_t token) const = 0;
};

/// What restricts a generation (a grammar, a JSON schema). One per sequence; called on the thread that
/// samples.
class TokenFilter {
 public:
  virtual ~TokenFilter() = default;
  /// Sets the logits of tokens that must not come next to -infinity, in place.
  virtual Status mask(std::span<float> logits) = 0;
  /// Follows a token that was generated.
  virtual Status accept(int32_t token) = 0;
  virtual void reset() = 0;
};

struct TokenLogProb {
  int32_t token = -1;
  float log_prob = 0;  ///< Natural logarithm.
};

struct SampledProbs {
  TokenLogProb chosen;
  std::vector<TokenLogProb> top;  ///< Best first, at most n_probs.
};

/// One per sequence, not thread-safe. The same seed, options and logits give the same tokens everywhere.
/// Randomness: xoshiro256++ seeded by splitmix64, 53 bits per draw; one draw per token, one more with XTC.
class Sampler {
 public:
  /// `token_bytes` may be null unless DRY with sequence breakers is on; it and `filter` (or null) must
  /// outlive the sampler. Errors: kInvalidArgument as validate(), and for a biased token outside the
  /// vocabulary.
  static Result<std::unique_ptr<Sampler>> create(const SamplingOptions& options, int32_t vocab_size,
                                                 const TokenBytes* token_bytes,
                                                 TokenFilter* filter = nullptr);
  ~Sampler();

  /// Chooses a token by `logits` [V]. NaN and infinite logits are never chosen. Does not add it to the
  /// history. Errors: kInternal where the model gave no finite logit or V is wrong; kInvalidArgument where
  /// bias or filter
  ///         leave no token; what the filter returns.
  /// Cost:   O(V); allocates nothing from the second call on.
  Result<int32_t> sample(std::span<const float> logits);

  /// Adds a generated token to the history and tells the filter. Errors: the filter's.
  Status accept(int32_t token);
  /// Adds the prompt to the history that penalties and DRY look at. The filter does not see it.
  void add_prompt(std::span<const int32_t> tokens);
  /// As new, with the same seed; resets the filter too.
  void reset();

  /// The seed in use: the one asked for, or the random one, which is below 2^32.
  uint64_t seed() const;
  /// Of the last sample(), if n_probs > 0.
  const SampledProbs& probs() const;
  /// The steps that are on, in order, with their values: "logit_bias -> top_k 40 -> ... -> temperature 0.8".
  std::string describe() const;
  /// Memory held, in bytes; 8 per vocabulary entry, 4 more with a filter.
  size_t memory_bytes() const;

  struct Parts;
  explicit Sampler(std::unique_ptr<Parts> parts);

 private:
  std::unique_ptr<Parts> parts_;
};

}  // namespace ganglion

// The tokens so far, as penalties and DRY look at them. Knows the bytes of tokens only to find where DRY's
// repetitions have to end. Used by the sampler; single thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ganglion/sampling.h"
#include "sampling/candidates.h"

namespace ganglion::sampling {

/// The newest tokens, in order. A bounded window is trimmed in steps of its own size, so that adding is O(1)
/// and allocates nothing once it has been filled twice.
class History {
 public:
  /// `window` in tokens; -1: unbounded. `breakers` end repetitions, wherever token borders lie in them.
  /// `token_bytes` may be null without breakers.
  History(int64_t window, std::vector<std::string> breakers, const TokenBytes* token_bytes);

  void add(int32_t token);
  void clear();

  /// The last `window` tokens (-1: all).
  std::span<const int32_t> last(int64_t window) const;
  /// Tokens after the last one in which a breaker ends.
  size_t since_breaker() const { return since_breaker_; }
  size_t memory_bytes() const;

 private:
  bool ends_breaker(std::string_view bytes);

  int64_t window_;
  std::vector<std::string> breakers_;
  const TokenBytes* token_bytes_;
  size_t longest_breaker_ = 0;
  std::vector<int32_t> tokens_;
  std::string tail_;  ///< The last bytes, fewer than the longest breaker has.
  size_t since_breaker_ = 0;
};

struct PenaltyOptions {
  int64_t window = 0;
  double repeat = 1;
  double presence = 0;
  double frequency = 0;
  bool enabled() const { return window != 0 && (repeat != 1 || presence != 0 || frequency != 0); }
};

/// Repetition (Keskar et al. 2019: a positive logit is divided, another multiplied), presence and frequency
/// penalty (OpenAI: subtracted once, and per occurrence).
class Penalties {
 public:
  explicit Penalties(const PenaltyOptions& options) : options_(options) {}
  void apply(Candidates& candidates, const History& history);
  size_t memory_bytes() const {
    return sorted_.capacity() * sizeof(int32_t) + counts_.capacity() * sizeof(Count);
  }

 private:
  struct Count {
    int32_t token;
    int32_t count;
  };
  PenaltyOptions options_;
  std::vector<int32_t> sorted_;
  std::vector<Count> counts_;
};

struct DryOptions {
  int64_t window = 0;
  double multiplier = 0;
  double base = 1.75;
  size_t allowed_length = 2;
  bool enabled() const { return window != 0 && multiplier > 0; }
};

/// "Don't repeat yourself": a token that would continue a repetition of n >= allowed_length tokens costs
/// multiplier * base^(n - allowed_length). Source: p-e-w, text-generation-webui pull request 5677.
class Dry {
 public:
  explicit Dry(const DryOptions& options) : options_(options) {}
  /// Cost: O(window).
  void apply(Candidates& candidates, const History& history);
  size_t memory_bytes() const;

 private:
  struct Repetition {
    int32_t token;
    uint32_t length;
  };
  void match_lengths(std::span<const int32_t> tokens);

  DryOptions options_;
  std::vector<uint32_t> lengths_;
  std::vector<Repetition> repetitions_;
};

}  // namespace ganglion::sampling

// What the scheduler is asked to do, in terms of tokens, and how it tells the outcome.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ganglion/sampling.h"
#include "server/api_error.h"

namespace ganglion::server {

enum class Finish { kStop, kLength };

/// What a choice took. Reads and waits of a pass over several sequences are divided among them.
struct ChoiceFacts {
  Finish finish = Finish::kStop;
  std::string stop_text;      ///< The stop string that ended it, if one did.
  size_t prompt_tokens = 0;   ///< In all...
  size_t cached_tokens = 0;   ///< ...of which so many were there already.
  double prompt_ms = 0;       ///< Of passes over the rest.
  size_t tokens = 0;          ///< Generated.
  double answer_ms = 0;       ///< From the first token on.
  double io_bytes = 0;        ///< Read for prompt and answer.
  double io_wait_ms = 0;      ///< In which nothing could be computed.
  double cache_hit_rate = 1;  ///< Share of the weights touched that was in memory.
  uint64_t seed = 0;          ///< In use.
};

/// A generated token with the model's own probabilities.
struct TokenProbs {
  TokenLogProb chosen;
  std::vector<TokenLogProb> top;
};

struct PromptProgress {
  size_t total = 0;
  size_t cached = 0;
  size_t done = 0;  ///< With the cached ones.
  double ms = 0;
};

/// Receives the outcome of one request on the engine's thread. Choices are numbered over all prompts.
class GenerationSink {
 public:
  virtual ~GenerationSink() = default;
  /// Accepted; on the thread that submits, before anything else is told.
  virtual void started() {}
  virtual void progress(size_t /*choice*/, const PromptProgress& /*progress*/) {}
  /// Text of whole characters, never part of a stop string; may be empty if only tokens are told.
  virtual void text(size_t choice, std::string_view text, std::span<const TokenProbs> probs,
                    const ChoiceFacts& facts) = 0;
  virtual void finished(size_t choice, const ChoiceFacts& facts) = 0;
  /// The last hidden state after the prompt [D]; for requests that ask for it, before finished().
  virtual void hidden(size_t /*choice*/, std::span<const float> /*hidden*/) {}
  /// All choices have finished.
  virtual void completed() = 0;
  /// Ends the request; nothing is told after it.
  virtual void failed(const ApiError& error) = 0;
  /// Set when nobody waits for the outcome any more.
  virtual std::atomic<bool>& cancelled() = 0;
};

/// Makes a new filter for each choice.
class FilterSource {
 public:
  virtual ~FilterSource() = default;
  virtual Result<std::unique_ptr<TokenFilter>> make() const = 0;
};

struct Generation {
  std::vector<std::vector<int32_t>> prompts;
  size_t choices = 1;  ///< Of each prompt.
  SamplingOptions sampling;
  int64_t most_tokens = -1;  ///< -1: until it ends.
  int64_t most_ms = 0;       ///< 0: no limit; counted from the first token.
  std::vector<std::string> stops;
  bool ignore_eos = false;
  bool show_control_tokens = false;
  bool reuse_prefix = true;
  bool tells_probs = false;
  int64_t slot = -1;         ///< The only slot that will do; -1: any.
  bool only_hidden = false;  ///< Evaluates prompts and tells their last hidden state.
  std::shared_ptr<const FilterSource> filter;
  std::unique_ptr<GenerationSink> sink;
};

/// What to do with the tokens that a slot holds.
enum class SlotVerb { kSave, kRestore, kErase };

struct SlotOutcome {
  size_t tokens = 0;
  uint64_t bytes = 0;  ///< Of the file.
  double ms = 0;
};

/// Done between passes, once nothing is generated in the slot.
struct SlotAction {
  size_t slot = 0;
  SlotVerb verb = SlotVerb::kErase;
  std::string path;                              ///< Of the file.
  std::function<Result<uint64_t>()> most_bytes;  ///< What a file may take; asked just before it is written.
  std::function<void(const Result<SlotOutcome>&)> done;  ///< On the engine's thread.
};

}  // namespace ganglion::server

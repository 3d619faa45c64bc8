// One sequence of tokens in an engine.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "ganglion/error.h"

namespace ganglion {

/// Receives logits of every position of an evaluation, on the thread that runs it.
class LogitSink {
 public:
  virtual ~LogitSink() = default;
  /// `logits` [V] predict the token after `position`; valid during the call.
  virtual void logits(size_t position, std::span<const float> logits) = 0;
  /// For finding where a layer goes wrong: the last token's input of each layer [D], then the final norm's
  /// output.
  virtual void hidden(size_t /*layer*/, std::span<const float> /*hidden*/) {}
  /// For statistics of activations: what the FFN of `layer` reads [D] for the token at `position`; valid
  /// during the call.
  virtual void ffn_input(size_t /*layer*/, size_t /*position*/, std::span<const float> /*x*/) {}
};

/// What tokens are to a sequence. Packs evaluate prompts with all neurons and what is generated with those
/// that are predicted to be active; other models make no difference.
enum class Phase { kPrompt, kGeneration };

/// Learns where a mixture of experts sends its tokens, on the thread that evaluates, between products: must
/// be quick and must not call the engine.
class RoutingSink {
 public:
  virtual ~RoutingSink() = default;
  /// A pass over the model begins; row 0 of it is at `first_position` of its sequence.
  virtual void begin_pass(size_t first_position) = 0;
  /// Row `row` of the pass goes to `experts` in `layer`, ascending; valid during the call.
  virtual void routed(size_t row, size_t layer, std::span<const uint32_t> experts) = 0;
};

/// Made by Engine::new_session, must not outlive its engine. Not thread-safe, but sessions of one engine may
/// be used on several threads. After an error other than kInvalidArgument, kContextOverflow and kCancelled a
/// session is poisoned: everything fails with kPoisoned until reset().
class Session {
 public:
  virtual ~Session() = default;

  /// Appends `tokens` and evaluates them, in chunks. Afterwards logits() are those of the last one. `sink`
  /// (or null) gets the logits of all. Stops with kCancelled soon after `*cancel` is set; whole chunks done
  /// until then stay. Errors: kInvalidArgument (no token, or one outside the vocabulary), kContextOverflow
  /// (with both numbers), kIo and kModelFile from reading weights, kResources (no KV page).
  virtual Status evaluate(std::span<const int32_t> tokens, const std::atomic<bool>* cancel = nullptr,
                          LogitSink* sink = nullptr, Phase phase = Phase::kPrompt) = 0;

  /// Logits [V] after the last token evaluated; empty before the first.
  virtual std::span<const float> logits() const = 0;
  virtual size_t position() const = 0;
  virtual size_t context() const = 0;
  virtual size_t vocab_size() const = 0;
  /// Forgets the tokens from `position` on. False if a sliding window no longer holds what it would need.
  [[nodiscard]] virtual bool try_rewind(size_t position) = 0;
  virtual void reset() = 0;
  /// Becomes a copy of `other`, of the same engine, in memory shared until they differ. Requires: an empty
  /// session. Errors: kPoisoned if `other` is.
  virtual Status fork_from(const Session& other) = 0;

  /// Writes what has been evaluated, whose tokens are `tokens`, to `path`, atomically (docs/kv_format.md).
  /// Returns the file's bytes. Errors: kInvalidArgument (nothing to save, or another number of tokens),
  /// kResources if it would exceed `most_bytes`, kIo, kPoisoned.
  virtual Result<uint64_t> save(const std::string& path, std::span<const int32_t> tokens,
                                uint64_t most_bytes) = 0;
  /// Becomes what was saved, whose tokens are returned; logits() are empty until the next evaluation. Errors:
  /// kNotFound, kModelFile (no such file, or damaged), kInvalidArgument (of another model or `kv_type`),
  /// kContextOverflow (with both numbers), kIo, kResources. What was there stays where the file's header
  /// shows the error, else the session is empty.
  virtual Result<std::vector<int32_t>> restore(const std::string& path) = 0;
};

}  // namespace ganglion

// Generates tokens from a session and a sampler, several per pass where drafts are right. The text is that of
// one token per pass, bit for bit: a drafted token counts only if the sampler chooses it from the same
// logits.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "ganglion/error.h"
#include "ganglion/sampling.h"
#include "ganglion/session.h"

namespace ganglion {

struct GenerationOptions {
  /// Tokens drafted per pass at most; 0: none. Needs as many EngineOptions::logit_rows, less one.
  size_t most_drafted = 0;
  /// Keep drafting even while it is measured not to pay.
  bool always_draft = false;
  /// A session of a small model with the same vocabulary (see same_vocabulary), which drafts its most likely
  /// tokens; it must outlive the generator. Null: drafts by prompt lookup.
  Session* drafter = nullptr;
};

struct GenerationStats {
  size_t passes = 0;
  size_t tokens = 0;
  size_t drafted = 0;
  size_t accepted = 0;  ///< Drafted tokens that were right.
};

/// Drafts by prompt lookup (what followed the last occurrence of the latest tokens) or by a small model. Pays
/// where a pass costs reading, not computing; measured while running, the time of drafting included, and
/// paused when it does not pay. Not thread-safe. Session and sampler must outlive it. Source: speculative
/// decoding (2211.17192) with n-gram drafts.
class Generator {
 public:
  Generator(Session& session, Sampler& sampler, const GenerationOptions& options);
  ~Generator();

  /// Evaluates `tokens` after what the session holds already, which is `held` (its prefix of the history).
  /// Errors: as Session::evaluate; on kCancelled what was done stays, see history().
  /// `progress` (or null) is told the tokens done and in all after every `piece` of them (any size gives the
  /// same bits).
  Status prompt(std::span<const int32_t> held, std::span<const int32_t> tokens,
                const std::atomic<bool>* cancel, size_t piece = SIZE_MAX,
                void (*progress)(void* context, uint64_t done, uint64_t total) = nullptr,
                void* context = nullptr);

  /// The next tokens, one or more. Evaluates the last one returned before, which prompt() or step() left to
  /// do. `most`: return at most so many (at least 1). Errors: as Session::evaluate and Sampler::sample.
  Result<std::span<const int32_t>> step(size_t most, const std::atomic<bool>* cancel);

  /// All tokens that the session holds now.
  std::span<const int32_t> history() const;
  const GenerationStats& stats() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace ganglion

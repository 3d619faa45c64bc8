// Drafts the next tokens by a small model.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <vector>

#include "ganglion/error.h"
#include "ganglion/session.h"

namespace ganglion::engine {

/// Keeps a session of the small model at the text so far. Not thread-safe.
class ModelDrafter {
 public:
  /// `session` of the small model starts afresh; tokens from `vocab_size` on are not drafted.
  ModelDrafter(Session& session, size_t vocab_size) : session_(session), vocab_size_(vocab_size) {
    session_.reset();
  }

  /// Writes the most likely tokens after `tokens`, one after the other, until draft.size() or one of which
  /// the model is not sure enough; returns how many, 0 where the small model cannot hold them.
  /// Errors: as Session::evaluate; the next call starts afresh.
  Result<size_t> draft(std::span<const int32_t> tokens, std::span<int32_t> draft,
                       const std::atomic<bool>* cancel);

 private:
  Status evaluate(std::span<const int32_t> tokens, Phase phase, const std::atomic<bool>* cancel);

  Session& session_;
  size_t vocab_size_;
  std::vector<int32_t> held_;  // what the session has evaluated
};

}  // namespace ganglion::engine

#include "engine/model_draft.h"

#include <algorithm>
#include <cmath>

#include "base/status.h"

namespace ganglion::engine {

namespace {

// A draft ends before a token of a lower probability: it is likely wrong, and with it all after it.
constexpr double kLeastProbability = 0.3;

/// The most likely token, or -1 if it is not likely enough.
int32_t likely_token(std::span<const float> logits) {
  const auto best = std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit - *best));
  return sum * kLeastProbability > 1 ? -1 : static_cast<int32_t>(best - logits.begin());
}

}  // namespace

Status ModelDrafter::evaluate(std::span<const int32_t> tokens, Phase phase, const std::atomic<bool>* cancel) {
  const Status status = session_.evaluate(tokens, cancel, nullptr, phase);
  if (status.ok()) {
    held_.insert(held_.end(), tokens.begin(), tokens.end());
  } else {
    session_.reset();
    held_.clear();
  }
  return status;
}

Result<size_t> ModelDrafter::draft(std::span<const int32_t> tokens, std::span<int32_t> draft,
                                   const std::atomic<bool>* cancel) {
  if (tokens.size() + draft.size() > session_.context()) return size_t{0};
  const auto last = static_cast<int32_t>(session_.vocab_size()) - 1;
  if (std::any_of(tokens.begin(), tokens.end(), [last](int32_t token) { return token > last; }))
    return size_t{0};
  // Back to what both have, and at least one token before the end, whose logits are wanted.
  const auto differ = std::mismatch(held_.begin(), held_.end(), tokens.begin(), tokens.end() - 1);
  const auto common = static_cast<size_t>(differ.first - held_.begin());
  if (common < held_.size()) {
    held_.resize(session_.try_rewind(common) ? common : 0);
    if (held_.empty()) session_.reset();
  }
  const Phase phase = held_.empty() ? Phase::kPrompt : Phase::kGeneration;
  GANGLION_RETURN_IF_ERROR(evaluate(tokens.subspan(held_.size()), phase, cancel));
  size_t count = 0;
  while (count < draft.size()) {
    const int32_t token = likely_token(session_.logits());
    if (token < 0 || static_cast<size_t>(token) >= vocab_size_) break;
    draft[count++] = token;
    if (count < draft.size()) GANGLION_RETURN_IF_ERROR(evaluate({&token, 1}, Phase::kGeneration, cancel));
  }
  return count;
}

}  // namespace ganglion::engine

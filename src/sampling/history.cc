#include "sampling/history.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace ganglion::sampling {
namespace {

/// Grows geometrically, which assign() and resize() of a cleared vector do not.
template <typename T>
void make_room(std::vector<T>& items, size_t count) {
  if (items.capacity() < count) items.reserve(2 * count);
}

}  // namespace

History::History(int64_t window, std::vector<std::string> breakers, const TokenBytes* token_bytes)
    : window_(window), breakers_(std::move(breakers)), token_bytes_(token_bytes) {
  for (const std::string& breaker : breakers_) longest_breaker_ = std::max(longest_breaker_, breaker.size());
}

void History::add(int32_t token) {
  if (window_ == 0) return;
  const auto window = static_cast<size_t>(window_);
  if (window_ > 0 && tokens_.size() == 2 * window) {
    tokens_.erase(tokens_.begin(), tokens_.end() - static_cast<std::ptrdiff_t>(window));
  }
  tokens_.push_back(token);
  ++since_breaker_;
  if (!breakers_.empty() && ends_breaker(token_bytes_->bytes(token))) since_breaker_ = 0;
}

bool History::ends_breaker(std::string_view bytes) {
  const size_t before = tail_.size();
  tail_.append(bytes);
  bool found = false;
  for (const std::string& breaker : breakers_) {
    // Only matches that end within the new bytes count; older ones were seen before.
    const size_t from = before + 1 > breaker.size() ? before + 1 - breaker.size() : 0;
    if (!bytes.empty() && tail_.find(breaker, from) != std::string::npos) found = true;
  }
  if (tail_.size() >= longest_breaker_) tail_.erase(0, tail_.size() + 1 - longest_breaker_);
  return found;
}

void History::clear() {
  tokens_.clear();
  tail_.clear();
  since_breaker_ = 0;
}

std::span<const int32_t> History::last(int64_t window) const {
  const std::span<const int32_t> all(tokens_);
  if (window < 0 || static_cast<size_t>(window) >= all.size()) return all;
  return all.last(static_cast<size_t>(window));
}

size_t History::memory_bytes() const {
  return tokens_.capacity() * sizeof(int32_t) + tail_.capacity();
}

void Penalties::apply(Candidates& candidates, const History& history) {
  const auto tokens = history.last(options_.window);
  if (!options_.enabled() || tokens.empty()) return;
  make_room(sorted_, tokens.size());
  make_room(counts_, tokens.size());
  sorted_.assign(tokens.begin(), tokens.end());
  std::sort(sorted_.begin(), sorted_.end());
  counts_.clear();
  for (const int32_t token : sorted_) {
    if (counts_.empty() || counts_.back().token != token) counts_.push_back({token, 0});
    ++counts_.back().count;
  }
  candidates.change_listed(std::span<const Count>(counts_),
                           [this](const Candidate& item, const Count& entry) {
                             double logit = item.logit;
                             logit = logit > 0 ? logit / options_.repeat : logit * options_.repeat;
                             return logit - options_.presence - options_.frequency * entry.count;
                           });
}

/// lengths_[i]: how many tokens before and including tokens[n - 1 - i] equal the last tokens, at most that
/// many as lie there; the Z function of the reversed history.
void Dry::match_lengths(std::span<const int32_t> tokens) {
  const size_t n = tokens.size();
  const auto reversed = [&](size_t i) { return tokens[n - 1 - i]; };
  make_room(lengths_, n);
  lengths_.assign(n, 0);
  size_t begin = 0;  // [begin, end): the match that reaches farthest.
  size_t end = 0;
  for (size_t i = 1; i < n; ++i) {
    size_t length = i < end ? std::min<size_t>(end - i, lengths_[i - begin]) : 0;
    while (i + length < n && reversed(length) == reversed(i + length)) ++length;
    lengths_[i] = static_cast<uint32_t>(length);
    if (i + length > end) {
      begin = i;
      end = i + length;
    }
  }
}

void Dry::apply(Candidates& candidates, const History& history) {
  const auto tokens = history.last(options_.window);
  const size_t longest = std::min(history.since_breaker(), tokens.size());
  if (!options_.enabled() || longest < options_.allowed_length) return;
  match_lengths(tokens);
  make_room(repetitions_, tokens.size());
  repetitions_.clear();
  const size_t n = tokens.size();
  for (size_t i = 1; i < n; ++i) {
    const size_t length = std::min<size_t>(lengths_[i], longest);
    if (length == 0 || length < options_.allowed_length) continue;
    repetitions_.push_back({tokens[n - i], static_cast<uint32_t>(length)});
  }
  // Per token the longest repetition counts.
  std::sort(repetitions_.begin(), repetitions_.end(), [](const Repetition& a, const Repetition& b) {
    return a.token != b.token ? a.token < b.token : a.length > b.length;
  });
  const auto same = [](const Repetition& a, const Repetition& b) { return a.token == b.token; };
  repetitions_.erase(std::unique(repetitions_.begin(), repetitions_.end(), same), repetitions_.end());
  candidates.change_listed(
      std::span<const Repetition>(repetitions_), [this](const Candidate& item, const Repetition& entry) {
        const auto exponent = static_cast<double>(entry.length - options_.allowed_length);
        return static_cast<double>(item.logit) - options_.multiplier * std::pow(options_.base, exponent);
      });
}

size_t Dry::memory_bytes() const {
  return lengths_.capacity() * sizeof(uint32_t) + repetitions_.capacity() * sizeof(Repetition);
}

}  // namespace ganglion::sampling

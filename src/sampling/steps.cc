#include "sampling/steps.h"

#include <algorithm>
#include <cmath>

namespace ganglion::sampling {
namespace {

/// -sum p log p, in nats.
double entropy(const Candidates& candidates, const Softmax& softmax) {
  double total = 0;
  for (const Candidate& item : candidates.items()) {
    const double probability = softmax.probability(item);
    if (probability > 0) total -= probability * softmax.log_probability(item.logit);
  }
  return total;
}

}  // namespace

void top_k(Candidates& candidates, size_t k) {
  if (k == 0 || k >= candidates.size()) return;
  candidates.sort_first(k);
  candidates.keep_first(k);
}

void top_p(Candidates& candidates, double p, size_t min_keep) {
  if (p >= 1) return;
  const Softmax softmax = candidates.softmax();
  double cumulated = 0;
  // The mass usually sits in few candidates: sort in growing portions.
  size_t sorted = 0;
  for (size_t i = 0; i < candidates.size(); ++i) {
    if (i == sorted) {
      sorted = std::max<size_t>(64, sorted * 4);
      candidates.sort_first(sorted);
    }
    cumulated += softmax.probability(candidates[i]);
    if (cumulated >= p && i + 1 >= min_keep) {
      candidates.keep_first(i + 1);
      return;
    }
  }
}

void min_p(Candidates& candidates, double p, size_t min_keep) {
  if (p <= 0) return;
  const double lowest = static_cast<double>(candidates.best().logit) + std::log(p);
  const auto keep = [lowest](const Candidate& item) { return item.logit >= lowest; };
  const auto items = candidates.items();
  const auto kept = static_cast<size_t>(std::count_if(items.begin(), items.end(), keep));
  if (kept < std::max<size_t>(min_keep, 1)) {
    top_k(candidates, std::max<size_t>(min_keep, 1));
  } else {
    candidates.keep_if(keep);
  }
}

void TypicalP::apply(Candidates& candidates, double p, size_t min_keep) {
  if (p >= 1) return;
  const Softmax softmax = candidates.softmax();
  const double expected = entropy(candidates, softmax);
  distances_.clear();
  for (size_t i = 0; i < candidates.size(); ++i) {
    const double surprise = -softmax.log_probability(candidates[i].logit);
    distances_.push_back({std::fabs(surprise - expected), static_cast<uint32_t>(i)});
  }
  std::sort(distances_.begin(), distances_.end(), [&](const Distance& a, const Distance& b) {
    if (a.distance != b.distance) return a.distance < b.distance;
    return better(candidates[a.index], candidates[b.index]);
  });
  kept_.clear();
  double cumulated = 0;
  for (const Distance& entry : distances_) {
    kept_.push_back(entry.index);
    cumulated += softmax.probability(candidates[entry.index]);
    if (cumulated > p && kept_.size() >= min_keep) break;
  }
  candidates.keep_indices(kept_);
}

size_t TypicalP::memory_bytes() const {
  return distances_.capacity() * sizeof(Distance) + kept_.capacity() * sizeof(uint32_t);
}

void top_n_sigma(Candidates& candidates, double n) {
  if (n <= 0 || candidates.size() < 2) return;
  const auto count = static_cast<double>(candidates.size());
  double mean = 0;
  for (const Candidate& item : candidates.items()) mean += static_cast<double>(item.logit) / count;
  double variance = 0;
  for (const Candidate& item : candidates.items()) {
    const double delta = static_cast<double>(item.logit) - mean;
    variance += delta * delta / count;
  }
  const double lowest = static_cast<double>(candidates.best().logit) - n * std::sqrt(variance);
  candidates.keep_if([lowest](const Candidate& item) { return item.logit >= lowest; });
}

void xtc(Candidates& candidates, const XtcOptions& options, Random& random) {
  if (options.probability <= 0 || options.threshold > 0.5 || candidates.size() < 2) return;
  if (random.uniform() >= options.probability) return;
  const Softmax softmax = candidates.softmax();
  size_t above = 0;
  for (const Candidate& item : candidates.items()) above += softmax.probability(item) >= options.threshold;
  if (above < 2) return;
  candidates.sort_first(above);
  const size_t dropped = above - 1;
  if (candidates.size() - dropped >= options.min_keep) candidates.drop_first(dropped);
}

void temperature(Candidates& candidates, const TemperatureOptions& options) {
  double divisor = options.temperature;
  if (options.range > 0 && candidates.size() > 1) {
    const double low = std::max(0.0, divisor - options.range);
    const double high = divisor + options.range;
    const double relative =
        entropy(candidates, candidates.softmax()) / std::log(static_cast<double>(candidates.size()));
    divisor = low + (high - low) * std::pow(std::clamp(relative, 0.0, 1.0), options.exponent);
  }
  if (divisor < static_cast<double>(kGreedyTemperature)) {
    top_k(candidates, 1);
  } else {
    candidates.scale(1 / divisor);
  }
}

size_t draw(const Candidates& candidates, const Softmax& softmax, double uniform) {
  const double goal = uniform * softmax.sum;
  double cumulated = 0;
  for (size_t i = 0; i + 1 < candidates.size(); ++i) {
    cumulated += std::exp(static_cast<double>(candidates[i].logit) - softmax.max);
    if (cumulated > goal) return i;
  }
  return candidates.size() - 1;
}

}  // namespace ganglion::sampling

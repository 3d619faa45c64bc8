#include "sampling/mirostat.h"

#include <algorithm>
#include <cmath>

#include "sampling/steps.h"

namespace ganglion::sampling {
namespace {

/// Exponent of Zipf's law that fits the best candidates: least squares over log-ratios of neighbours.
double zipf_exponent(Candidates& candidates) {
  constexpr size_t kFitted = 100;  // As in the paper.
  const size_t count = std::min(kFitted, candidates.size());
  candidates.sort_first(count);
  double products = 0;
  double squares = 0;
  for (size_t i = 0; i + 1 < count; ++i) {
    const double ratio = std::log(static_cast<double>(i + 2) / static_cast<double>(i + 1));
    products +=
        ratio * (static_cast<double>(candidates[i].logit) - static_cast<double>(candidates[i + 1].logit));
    squares += ratio * ratio;
  }
  return squares > 0 ? products / squares : 0;
}

}  // namespace

size_t Mirostat::top_k_for_mu(Candidates& candidates) const {
  const double exponent = zipf_exponent(candidates);
  const double excess = exponent - 1;
  const auto vocab = static_cast<double>(options_.vocab_size);
  const double k = std::pow(excess * std::exp2(mu_) / (1 - std::pow(vocab, -excess)), 1 / exponent);
  // A flat or an exactly harmonic distribution has no estimate: keep all.
  if (!std::isfinite(k) || k >= vocab) return candidates.size();
  return std::max<size_t>(1, static_cast<size_t>(k));
}

size_t Mirostat::choose(Candidates& candidates, Random& random) {
  if (options_.version == 1) {
    top_k(candidates, top_k_for_mu(candidates));
  } else {
    const Softmax softmax = candidates.softmax();
    const Candidate best = candidates.best();
    const double mu = mu_;
    candidates.keep_if([&](const Candidate& item) {
      return item.token == best.token || -softmax.log_probability(item.logit) / std::log(2.0) <= mu;
    });
  }
  const Softmax softmax = candidates.softmax();
  const size_t index = draw(candidates, softmax, random.uniform());
  const double surprise = -softmax.log_probability(candidates[index].logit) / std::log(2.0);
  mu_ -= options_.eta * (surprise - options_.tau);
  return index;
}

}  // namespace ganglion::sampling

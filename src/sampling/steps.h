// The cut-offs and the temperature: each step removes candidates or scales their logits, and never removes
// all. Pure functions of the candidates, their parameters and, for XTC, one random number. Called by the
// sampler.
#pragma once

#include <cstdint>
#include <vector>

#include "sampling/candidates.h"
#include "sampling/random.h"

namespace ganglion::sampling {

/// Below this a temperature means greedy; logits divided by less would no longer fit a float.
inline constexpr float kGreedyTemperature = 1e-6F;

void top_k(Candidates& candidates, size_t k);

/// The fewest of the best whose probabilities sum to `p`, at least `min_keep`.
/// Source: Holtzman et al. 2020, nucleus sampling.
void top_p(Candidates& candidates, double p, size_t min_keep);

/// Those at least `p` times as probable as the best, or the `min_keep` best if these are more.
/// Source: Nguyen et al. 2024.
void min_p(Candidates& candidates, double p, size_t min_keep);

/// Those whose surprise is nearest to the entropy, up to a mass of `p`. Source: Meister et al. 2022.
class TypicalP {
 public:
  void apply(Candidates& candidates, double p, size_t min_keep);
  size_t memory_bytes() const;

 private:
  struct Distance {
    double distance;
    uint32_t index;
  };
  std::vector<Distance> distances_;
  std::vector<uint32_t> kept_;
};

/// Those within `n` standard deviations of the best logit. Source: Tang et al. 2024.
void top_n_sigma(Candidates& candidates, double n);

struct XtcOptions {
  double probability = 0;
  double threshold = 0;
  size_t min_keep = 0;
};

/// With `probability`, removes all candidates of at least `threshold` except the least probable of them.
void xtc(Candidates& candidates, const XtcOptions& options, Random& random);

struct TemperatureOptions {
  double temperature = 1;
  double range = 0;
  double exponent = 1;
};

/// Divides by the temperature; with a range, by one between temperature - range and + range that grows with
/// the entropy relative to its maximum. Where that is greedy, only the best is left.
void temperature(Candidates& candidates, const TemperatureOptions& options);

/// The index of the candidate where the cumulated probability passes `uniform`.
size_t draw(const Candidates& candidates, const Softmax& softmax, double uniform);

}  // namespace ganglion::sampling

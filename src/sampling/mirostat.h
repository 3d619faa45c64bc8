// Mirostat: keeps the surprise of the chosen tokens near an aim by moving a cut-off. Source: Basu et al.
// 2021; version 2 is the authors' simplification, which needs no estimate of the distribution's shape.
#pragma once

#include <cstddef>

#include "sampling/candidates.h"
#include "sampling/random.h"

namespace ganglion::sampling {

struct MirostatOptions {
  int version = 2;   ///< 1 or 2.
  double tau = 5;    ///< Aimed surprise in bits.
  double eta = 0.1;  ///< Learning rate.
  size_t vocab_size = 0;
};

class Mirostat {
 public:
  explicit Mirostat(const MirostatOptions& options) : options_(options) { reset(); }

  /// Cuts the candidates, draws one, and learns from its surprise. Returns its index.
  size_t choose(Candidates& candidates, Random& random);
  void reset() { mu_ = 2 * options_.tau; }
  double mu() const { return mu_; }

 private:
  size_t top_k_for_mu(Candidates& candidates) const;

  MirostatOptions options_;
  double mu_ = 0;  ///< Greatest surprise allowed, in bits.
};

}  // namespace ganglion::sampling

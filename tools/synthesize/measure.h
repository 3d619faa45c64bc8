// What sparsity a model has: random tokens through the engine, then every gate on the FFN inputs that it
// saw. Tokens are independent of each other, which is the hard case for anything that caches neurons.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"

namespace ganglion::synthesize {

struct MeasureOptions {
  std::string path;
  size_t tokens = 64;           ///< At least 8.
  std::string memory = "auto";  ///< Budget of the engine's run.
  uint64_t seed = 1;            ///< Of the tokens.
  int threads = 0;
};

/// Active: the gate is positive, under dReLU both gate and up. With experts, counted over the experts that a
/// token goes to, but shares and ranks over all tokens on all experts.
struct Measured {
  std::vector<double> active_by_layer;
  double active = 0;
  /// Shares of the activations of the second half of the tokens that fall to the neurons which the gates'
  /// mean over deviation on the first half ranks highest: no neuron is ranked by what it is counted on.
  /// Ranks from few tokens are rough: 64 give shares about two percentage points too low, 256 one half.
  double top_30_share = 0;
  double top_50_share = 0;
  /// Of FFN inputs of one token in adjacent layers.
  double cosine_least = 1;
  double cosine_mean = 0;
  double cosine_most = -1;
  double token_cosine = 0;  ///< Of FFN inputs of neighbouring tokens in one layer, on average.
  /// Exact signs of a layer's gates on the FFN input of the layer before: how many of the active neurons they
  /// find, and how many of those found are active.
  double ahead_recall = 0;
  double ahead_precision = 0;
  uint32_t rank = 0;
  double low_rank_share = 0;  ///< Of the variance of a middle layer's gates, their mean row removed.
  // With experts: tokens of the least and most used expert of a layer, as multiples of an even share.
  double expert_least = 1;
  double expert_most = 1;
  double logit_deviation = 0;  ///< Over the vocabulary and tokens.
};

/// Errors: those of opening and running the model; kUnsupported for one without separate gate matrices.
base::Result<Measured> measure(const MeasureOptions& options);

/// A few lines for people.
std::string describe(const Measured& measured);

}  // namespace ganglion::synthesize

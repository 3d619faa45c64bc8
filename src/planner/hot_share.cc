#include "planner/hot_share.h"

#include <algorithm>
#include <cmath>

#include "base/units.h"

namespace ganglion::planner {

namespace {

constexpr double kLeastGain = 0.95;

// By block: the share of its neurons that the processor computes for `tokens` tokens, the mean of all sets; a
// set counts as one of the mean's even where it has no such block.
std::vector<double> active_shares(const HotShareRequest& request, uint32_t tokens) {
  size_t longest = 0;
  for (const NeuronSet& set : request.sets) longest = std::max(longest, set.frequency.size());
  std::vector<double> shares(base::ceil_div(longest, request.block_neurons));
  for (const NeuronSet& set : request.sets) {
    for (size_t n = 0; n < set.frequency.size(); ++n) {
      const double one = std::min(1.0, static_cast<double>(set.frequency[n]) * request.over_prediction);
      shares[n / request.block_neurons] += 1 - std::pow(1 - one, tokens);
    }
  }
  for (double& share : shares)
    share /= static_cast<double>(request.sets.size()) * static_cast<double>(request.block_neurons);
  return shares;
}

}  // namespace

HotShare choose_hot_share(const HotShareRequest& request) {
  HotShare chosen;
  uint32_t least = 0;
  for (const BlockTimes& times : request.times) {
    const std::vector<double> shares = active_shares(request, times.tokens);
    double all = 0;
    for (const double share : shares) all += share * times.processor_ns;
    const size_t most = std::min<size_t>(request.most_blocks, shares.size());
    uint32_t best = 0;
    double best_ns = kLeastGain * all;
    double left = all;
    double left_then = all;
    for (uint32_t blocks = 1; blocks <= most; ++blocks) {
      left -= shares[blocks - 1] * times.processor_ns;
      const double ns = std::max(request.hop_ns + blocks * times.device_ns, left);
      if (ns >= best_ns) continue;
      best_ns = ns;
      best = blocks;
      left_then = left;
    }
    // What is dense for few tokens is so for more.
    best = std::max(best, least);
    least = best;
    if (chosen.blocks.empty()) {
      chosen.device_ns = request.hop_ns + std::max(best, 1U) * times.device_ns;
      chosen.processor_ns = left_then;
      chosen.alone_ns = all;
    }
    chosen.blocks.push_back(best);
  }
  return chosen;
}

}  // namespace ganglion::planner

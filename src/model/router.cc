#include "model/router.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"

namespace ganglion::model {

using model_config::MoeConfig;
using model_config::RouterScore;

namespace {

constexpr float kOut = -std::numeric_limits<float>::infinity();

void softmax(std::span<float> x) {
  const float largest = *std::max_element(x.begin(), x.end());
  float sum = 0;
  for (float& value : x) sum += value = std::exp(value - largest);
  for (float& value : x) value /= sum;
}

// Excludes all experts outside the best groups; a group is as good as its two best experts together.
// Source: DeepSeek-V3 (2412.19437) section 2.1.2.
void keep_best_groups(const MoeConfig& config, std::span<float> scores) {
  const size_t size = config.expert_count / config.group_count;
  for (uint32_t dropped = 0; dropped < config.group_count - config.groups_used; ++dropped) {
    size_t worst = 0;
    float least = std::numeric_limits<float>::infinity();
    for (size_t g = 0; g < config.group_count; ++g) {
      float best = kOut;
      float second = kOut;
      for (const float score : scores.subspan(g * size, size)) {
        if (score > best) {
          second = best;
          best = score;
        } else if (score > second) {
          second = score;
        }
      }
      if (best == kOut) continue;  // Excluded before.
      const float value = second == kOut ? best : best + second;
      if (value <= least) {
        least = value;
        worst = g;
      }
    }
    std::fill_n(scores.begin() + static_cast<ptrdiff_t>(worst * size), size, kOut);
  }
}

}  // namespace

void route(const MoeConfig& config, std::span<float> logits, const float* selection_bias,
           std::span<float> scratch, std::span<Routed> out) {
  GANGLION_DCHECK(out.size() == config.used_count);
  if (config.score == RouterScore::kSoftmax) softmax(logits);
  if (config.score == RouterScore::kSigmoid) {
    for (float& value : logits) value = 1 / (1 + std::exp(-value));
  }
  for (size_t i = 0; i < logits.size(); ++i) {
    scratch[i] = logits[i] + (selection_bias != nullptr ? selection_bias[i] : 0);
  }
  if (config.groups_used < config.group_count) keep_best_groups(config, scratch);
  for (Routed& routed : out) {
    const auto best = std::max_element(scratch.begin(), scratch.end());
    routed.expert = static_cast<uint32_t>(best - scratch.begin());
    routed.weight = logits[routed.expert];
    *best = kOut;
  }
  std::sort(out.begin(), out.end(), [](const Routed& a, const Routed& b) { return a.expert < b.expert; });
  if (config.score == RouterScore::kSoftmaxOfSelected) {
    float largest = kOut;
    for (const Routed& routed : out) largest = std::max(largest, routed.weight);
    for (Routed& routed : out) routed.weight = std::exp(routed.weight - largest);
  }
  if (config.normalise || config.score == RouterScore::kSoftmaxOfSelected) {
    float sum = 0;
    for (const Routed& routed : out) sum += routed.weight;
    // The smallest normal F16: keeps a row of vanishing scores finite.
    sum = std::max(sum, 6.103515625e-5F);
    for (Routed& routed : out) routed.weight /= sum;
  }
  for (Routed& routed : out) routed.weight *= config.weight_scale;
}

}  // namespace ganglion::model

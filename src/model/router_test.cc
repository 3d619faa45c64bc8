#include "model/router.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>
#include <random>

namespace ganglion::model {
namespace {

using model_config::MoeConfig;
using model_config::RouterScore;

struct Choice {
  std::vector<uint32_t> experts;  // Ascending.
  std::vector<double> weights;
};

// The `count` largest values, lower indices first among equals; nothing if values that are not equal are too
// close for single precision to tell apart.
std::optional<std::vector<size_t>> largest(const std::vector<double>& values, size_t count) {
  std::vector<size_t> order(values.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return values[a] > values[b]; });
  if (count < order.size()) {
    const double gap = values[order[count - 1]] - values[order[count]];
    if (gap != 0 && gap < 1e-5) return std::nullopt;
  }
  order.resize(count);
  return order;
}

std::optional<Choice> naive_route(const MoeConfig& config, const std::vector<float>& logits,
                                  const std::vector<float>& bias) {
  std::vector<double> scores(logits.begin(), logits.end());
  if (config.score == RouterScore::kSoftmax) {
    double sum = 0;
    for (const float logit : logits) sum += std::exp(static_cast<double>(logit));
    for (double& score : scores) score = std::exp(score) / sum;
  } else if (config.score == RouterScore::kSigmoid) {
    for (double& score : scores) score = 1 / (1 + std::exp(-score));
  }
  std::vector<double> selection = scores;
  for (size_t i = 0; i < bias.size(); ++i) selection[i] += static_cast<double>(bias[i]);
  const size_t group_size = config.expert_count / config.group_count;
  if (config.groups_used < config.group_count) {
    std::vector<double> values;
    for (size_t g = 0; g < config.group_count; ++g) {
      std::vector<double> group(selection.begin() + static_cast<ptrdiff_t>(g * group_size),
                                selection.begin() + static_cast<ptrdiff_t>((g + 1) * group_size));
      std::sort(group.rbegin(), group.rend());
      values.push_back(group[0] + (group.size() > 1 ? group[1] : 0));
    }
    const auto groups = largest(values, config.groups_used);
    if (!groups) return std::nullopt;
    for (size_t i = 0; i < selection.size(); ++i) {
      if (std::find(groups->begin(), groups->end(), i / group_size) == groups->end()) {
        selection[i] = -std::numeric_limits<double>::infinity();
      }
    }
  }
  auto chosen = largest(selection, config.used_count);
  if (!chosen) return std::nullopt;
  std::sort(chosen->begin(), chosen->end());
  Choice choice;
  double sum = 0;
  for (const size_t expert : *chosen) {
    const bool of_selected = config.score == RouterScore::kSoftmaxOfSelected;
    choice.experts.push_back(static_cast<uint32_t>(expert));
    choice.weights.push_back(of_selected ? std::exp(scores[expert]) : scores[expert]);
    sum += choice.weights.back();
  }
  // The sum of vanishing scores is not taken for less than the smallest normal F16; see route().
  if (config.score != RouterScore::kSoftmaxOfSelected) sum = std::max(sum, std::ldexp(1.0, -14));
  const bool divide = config.normalise || config.score == RouterScore::kSoftmaxOfSelected;
  for (double& weight : choice.weights)
    weight *= static_cast<double>(config.weight_scale) / (divide ? sum : 1);
  return choice;
}

std::vector<Routed> run(const MoeConfig& config, std::vector<float> logits,
                        const std::vector<float>& bias = {}) {
  std::vector<float> scratch(logits.size());
  std::vector<Routed> out(config.used_count);
  route(config, logits, bias.empty() ? nullptr : bias.data(), scratch, out);
  return out;
}

TEST(Router, AgreesWithANaiveOneInDoublePrecision) {
  std::mt19937 random(1);
  int compared = 0;
  for (int round = 0; round < 20000; ++round) {
    MoeConfig config;
    config.group_count = 1U << random() % 4;
    config.groups_used = 1 + static_cast<uint32_t>(random() % config.group_count);
    config.expert_count = config.group_count * (1 + static_cast<uint32_t>(random() % 12));
    const uint32_t eligible = config.expert_count / config.group_count * config.groups_used;
    config.used_count = 1 + static_cast<uint32_t>(random() % std::min(eligible, 8U));
    config.score = static_cast<RouterScore>(random() % 3);
    config.normalise = random() % 2 == 0;
    config.weight_scale = random() % 2 == 0 ? 1.0F : 2.5F;
    std::vector<float> logits(config.expert_count);
    // Eighths: many are equal.
    for (float& logit : logits) logit = static_cast<float>(static_cast<int>(random() % 97) - 48) / 8;
    std::vector<float> bias;
    if (random() % 2 == 0) {
      for (size_t i = 0; i < logits.size(); ++i) bias.push_back(static_cast<float>(random() % 5) / 4);
    }
    const auto expected = naive_route(config, logits, bias);
    if (!expected) continue;
    ++compared;
    const std::vector<Routed> got = run(config, logits, bias);
    for (size_t i = 0; i < got.size(); ++i) {
      ASSERT_EQ(got[i].expert, expected->experts[i]) << "round " << round;
      ASSERT_NEAR(got[i].weight, expected->weights[i], 1e-5 * (1 + std::abs(expected->weights[i])))
          << "round " << round;
    }
  }
  EXPECT_GT(compared, 15000);
}

TEST(Router, TiesGoToTheLowerIndex) {
  MoeConfig config;
  config.expert_count = 6;
  config.used_count = 2;
  const std::vector<Routed> got = run(config, {1, 3, 3, 3, 1, 3});
  EXPECT_EQ(got[0].expert, 1U);
  EXPECT_EQ(got[1].expert, 2U);
  EXPECT_FLOAT_EQ(got[0].weight, 0.5F);
  config.group_count = 3;
  config.groups_used = 1;
  EXPECT_EQ(run(config, {1, 2, 2, 1, 1, 2})[0].expert, 0U) << "all groups are as good";
}

TEST(Router, AGroupIsAsGoodAsItsTwoBestExperts) {
  MoeConfig config;
  config.expert_count = 6;
  config.used_count = 1;
  config.group_count = 2;
  config.groups_used = 1;
  config.score = RouterScore::kSigmoid;
  config.normalise = false;
  const std::vector<Routed> got = run(config, {4, -6, -6, 2, 2, -6});
  EXPECT_EQ(got[0].expert, 3U) << "the best expert stands in the worse group";
}

TEST(Router, TheSelectionBiasDoesNotReachTheWeights) {
  MoeConfig config;
  config.expert_count = 3;
  config.used_count = 1;
  config.score = RouterScore::kSigmoid;
  config.normalise = false;
  const std::vector<Routed> got = run(config, {2, 0, 1}, {0, 10, 0});
  EXPECT_EQ(got[0].expert, 1U);
  EXPECT_FLOAT_EQ(got[0].weight, 0.5F);
}

TEST(Router, ExtremeLogitsStayFinite) {
  for (const RouterScore score :
       {RouterScore::kSoftmax, RouterScore::kSigmoid, RouterScore::kSoftmaxOfSelected}) {
    MoeConfig config;
    config.expert_count = 4;
    config.used_count = 2;
    config.score = score;
    for (const float size : {1e4F, 3e38F}) {
      for (const Routed& routed : run(config, {size, -size, -size, -size})) {
        EXPECT_LT(routed.expert, 4U);
        EXPECT_TRUE(std::isfinite(routed.weight));
      }
      for (const Routed& routed : run(config, {-size, -size, -size, -size}))
        EXPECT_TRUE(std::isfinite(routed.weight));
    }
  }
}

// What a damaged model computes may be nonsense, but stays within the model.
TEST(Router, NotANumberChoosesExpertsThatExist) {
  MoeConfig config;
  config.expert_count = 4;
  config.used_count = 3;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const Routed& routed : run(config, {nan, nan, nan, nan})) EXPECT_LT(routed.expert, 4U);
  for (const Routed& routed : run(config, {1, nan, 2, nan})) EXPECT_LT(routed.expert, 4U);
}

}  // namespace
}  // namespace ganglion::model

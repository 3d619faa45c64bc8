#include "model/rope.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <random>

namespace ganglion::model {
namespace {

using model_config::RopeConfig;
using model_config::RopeStyle;

// Frequency of a pair, in double precision. Source: YaRN (2309.00071), appendix A.2, as its authors' code has
// it.
double naive_frequency(const RopeConfig& config, uint32_t pair, const std::vector<float>& factors) {
  const double dims = config.dims;
  const double base = static_cast<double>(config.base);
  double plain = std::pow(base, -2.0 * pair / dims);
  if (!factors.empty()) plain /= static_cast<double>(factors[pair]);
  const double scaled = plain * static_cast<double>(config.frequency_scale);
  if (!config.yarn) return scaled;
  const auto dimension = [&](float turns) {
    return dims * std::log(config.original_context / (static_cast<double>(turns) * 2 * std::numbers::pi)) /
           (2 * std::log(base));
  };
  const double low = std::max(0.0, std::floor(dimension(config.beta_fast)));
  const double high = std::min(dims - 1, std::ceil(dimension(config.beta_slow)));
  const double ramp = std::clamp((pair - low) / std::max(0.001, high - low), 0.0, 1.0);
  return scaled * ramp + plain * (1 - ramp);
}

std::vector<RopeConfig> configs() {
  RopeConfig plain;
  plain.dims = 64;
  RopeConfig halves = plain;
  halves.style = RopeStyle::kHalves;
  halves.dims = 128;
  halves.base = 500000;
  RopeConfig linear = halves;
  linear.frequency_scale = 1.0F / 8;
  RopeConfig yarn = plain;
  yarn.yarn = true;
  yarn.frequency_scale = 1.0F / 40;
  yarn.original_context = 4096;
  yarn.magnitude = 1.3688F;
  RopeConfig gpt_oss = yarn;
  gpt_oss.style = RopeStyle::kHalves;
  gpt_oss.base = 150000;
  gpt_oss.frequency_scale = 1.0F / 32;
  RopeConfig tiny = plain;
  tiny.dims = 2;
  return {plain, halves, linear, yarn, gpt_oss, tiny};
}

TEST(Rope, AnglesAgreeWithDoublePrecision) {
  for (const RopeConfig& config : configs()) {
    for (const bool with_factors : {false, true}) {
      std::vector<float> factors;
      for (uint32_t i = 0; with_factors && i < config.dims / 2; ++i)
        factors.push_back(1 + static_cast<float>(i) / 4);
      const Rope rope(config, factors);
      ASSERT_EQ(rope.dims(), config.dims);
      std::vector<float> cos_sin(config.dims);
      for (const int64_t position : {0, 1, 2, 63, 64, 4095, 4096, 131071}) {
        rope.angles(position, cos_sin.data());
        for (uint32_t i = 0; i < config.dims / 2; ++i) {
          const double angle = static_cast<double>(position) * naive_frequency(config, i, factors);
          const double magnitude = static_cast<double>(config.magnitude);
          // A few roundings of the angle itself, which grows with the position.
          const double tolerance = 1e-6 + angle * 6e-7;
          EXPECT_NEAR(cos_sin[2 * i], magnitude * std::cos(angle), tolerance)
              << "pair " << i << " at " << position;
          EXPECT_NEAR(cos_sin[2 * i + 1], magnitude * std::sin(angle), tolerance)
              << "pair " << i << " at " << position;
        }
      }
    }
  }
}

TEST(Rope, YarnKeepsFastPairsAndScalesSlowOnes) {
  RopeConfig config = configs()[3];
  config.magnitude = 1;
  const Rope yarn(config, {});
  std::vector<float> cos_sin(config.dims);
  yarn.angles(1, cos_sin.data());
  const auto angle = [&](uint32_t i) { return std::atan2(cos_sin[2 * i + 1], cos_sin[2 * i]); };
  EXPECT_NEAR(angle(0), 1, 1e-6);
  const uint32_t last = config.dims / 2 - 1;
  EXPECT_NEAR(angle(last), std::pow(1e4, -62.0 / 64) / 40, 1e-8);
}

TEST(Rope, RotatesThePairsOfItsStyleAndNothingElse) {
  std::mt19937 random(2);
  std::normal_distribution<float> normal;
  for (const RopeConfig& config : configs()) {
    const Rope rope(config, {});
    constexpr size_t kHeads = 3;
    const size_t stride = config.dims + 16;  // The last elements of a head pass through.
    std::vector<float> x(kHeads * stride);
    for (float& value : x) value = normal(random);
    const std::vector<float> before = x;
    std::vector<float> cos_sin(config.dims);
    rope.angles(37, cos_sin.data());
    rope.rotate(x.data(), kHeads, stride, cos_sin.data());
    std::vector<double> expected(before.begin(), before.end());
    for (size_t head = 0; head < kHeads; ++head) {
      for (uint32_t i = 0; i < config.dims / 2; ++i) {
        const bool adjacent = config.style == RopeStyle::kAdjacent;
        const size_t a = head * stride + (adjacent ? 2 * i : i);
        const size_t b = head * stride + (adjacent ? 2 * i + 1 : i + config.dims / 2);
        const double angle = 37 * naive_frequency(config, i, {});
        const double magnitude = static_cast<double>(config.magnitude);
        const double xa = static_cast<double>(before[a]);
        const double xb = static_cast<double>(before[b]);
        expected[a] = magnitude * (xa * std::cos(angle) - xb * std::sin(angle));
        expected[b] = magnitude * (xa * std::sin(angle) + xb * std::cos(angle));
      }
    }
    for (size_t i = 0; i < x.size(); ++i) {
      if (i % stride >= config.dims) {
        EXPECT_EQ(x[i], before[i]);
      } else {
        EXPECT_NEAR(x[i], expected[i], 2e-4) << i;
      }
    }
  }
}

TEST(Rope, ScoresDependOnTheDistanceAlone) {
  const RopeConfig config = configs()[1];
  const Rope rope(config, {});
  std::mt19937 random(4);
  std::normal_distribution<float> normal;
  std::vector<float> q(config.dims);
  std::vector<float> k(config.dims);
  for (float& value : q) value = normal(random);
  for (float& value : k) value = normal(random);
  const auto score = [&](int64_t at_q, int64_t at_k) {
    std::vector<float> cos_sin(config.dims);
    std::vector<float> a = q;
    std::vector<float> b = k;
    rope.angles(at_q, cos_sin.data());
    rope.rotate(a.data(), 1, config.dims, cos_sin.data());
    rope.angles(at_k, cos_sin.data());
    rope.rotate(b.data(), 1, config.dims, cos_sin.data());
    double sum = 0;
    for (size_t i = 0; i < a.size(); ++i) sum += static_cast<double>(a[i]) * static_cast<double>(b[i]);
    return sum;
  };
  EXPECT_NEAR(score(5, 2), score(1003, 1000), 1e-2);
  EXPECT_GT(std::abs(score(5, 2) - score(5, 3)), 1e-1);
}

}  // namespace
}  // namespace ganglion::model

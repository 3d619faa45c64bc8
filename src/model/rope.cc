#include "model/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace ganglion::model {

using model_config::RopeConfig;
using model_config::RopeStyle;

namespace {

// The dimension whose wave makes `turns` turns within the original context.
float yarn_dimension(const RopeConfig& config, float turns) {
  const float two_pi = 2 * std::numbers::pi_v<float>;
  return static_cast<float>(config.dims) *
         std::log(static_cast<float>(config.original_context) / (turns * two_pi)) /
         (2 * std::log(config.base));
}

// Share of the unscaled frequency at pair `i`.
float yarn_blend(const RopeConfig& config, uint32_t i) {
  const float low = std::max(0.0F, std::floor(yarn_dimension(config, config.beta_fast)));
  const float high =
      std::min(static_cast<float>(config.dims) - 1, std::ceil(yarn_dimension(config, config.beta_slow)));
  const float ramp = (static_cast<float>(i) - low) / std::max(0.001F, high - low);
  return 1 - std::clamp(ramp, 0.0F, 1.0F);
}

}  // namespace

Rope::Rope(const RopeConfig& config, std::span<const float> factors)
    : style_(config.style), dims_(config.dims), magnitude_(config.magnitude) {
  for (uint32_t i = 0; i < dims_ / 2; ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(dims_);
    float plain = 1 / std::pow(config.base, exponent);
    if (i < factors.size()) plain /= factors[i];
    const float scaled = plain * config.frequency_scale;
    const float blend = config.yarn ? yarn_blend(config, i) : 0;
    frequencies_.push_back(scaled * (1 - blend) + plain * blend);
  }
}

void Rope::angles(int64_t position, float* cos_sin) const {
  for (size_t i = 0; i < frequencies_.size(); ++i) {
    const float angle = static_cast<float>(position) * frequencies_[i];
    cos_sin[2 * i] = std::cos(angle) * magnitude_;
    cos_sin[2 * i + 1] = std::sin(angle) * magnitude_;
  }
}

void Rope::rotate(float* x, size_t heads, size_t stride, const float* cos_sin) const {
  const size_t half = dims_ / 2;
  const size_t step = style_ == RopeStyle::kAdjacent ? 2 : 1;
  const size_t partner = style_ == RopeStyle::kAdjacent ? 1 : half;
  for (size_t h = 0; h < heads; ++h) {
    float* head = x + h * stride;
    for (size_t i = 0; i < half; ++i) {
      const float a = head[i * step];
      const float b = head[i * step + partner];
      head[i * step] = a * cos_sin[2 * i] - b * cos_sin[2 * i + 1];
      head[i * step + partner] = a * cos_sin[2 * i + 1] + b * cos_sin[2 * i];
    }
  }
}

}  // namespace ganglion::model

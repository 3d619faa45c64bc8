// Which experts a token goes to, and with which weights. Pure.
#pragma once

#include <cstdint>
#include <span>

#include "model_config/model_config.h"

namespace ganglion::model {

struct Routed {
  uint32_t expert;
  float weight;
};

/// Chooses config.used_count experts by the router's `logits` [expert_count] (overwritten) and returns them
/// in `out`, ascending by index. `selection_bias` [expert_count] (or null) is added for the choice alone.
/// Ties go to the lower index. `scratch` [expert_count].
void route(const model_config::MoeConfig& config, std::span<float> logits, const float* selection_bias,
           std::span<float> scratch, std::span<Routed> out);

}  // namespace ganglion::model

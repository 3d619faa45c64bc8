// Which gates count as open in sparse passes.
#pragma once

namespace ganglion::engine {

/// Gates above `above`, and those between `low` and `high`: SiLU is below zero there.
struct OpenGates {
  float above = 0;
  float low = 0;
  float high = 0;

  bool operator()(float gate) const { return gate > above || (gate > low && gate < high); }
};

/// The gates whose SiLU is larger than `threshold` in magnitude.
OpenGates open_silu_gates(float threshold);

}  // namespace ganglion::engine

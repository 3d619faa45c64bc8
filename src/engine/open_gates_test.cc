#include "engine/open_gates.h"

#include <gtest/gtest.h>

#include <cmath>

namespace ganglion::engine {
namespace {

TEST(OpenGates, SiluGatesAreOpenWhereTheActivationIsLarge) {
  for (const float threshold : {0.01F, 0.1F, 0.27F, 0.28F, 0.6F, 3.0F}) {
    const OpenGates open = open_silu_gates(threshold);
    for (float gate = -12; gate < 6; gate += 0.0371F) {
      const auto g = static_cast<double>(gate);
      const double size = std::fabs(g / (1 + std::exp(-g)));
      if (std::fabs(size - static_cast<double>(threshold)) < 1e-6) continue;
      EXPECT_EQ(open(gate), size > static_cast<double>(threshold)) << gate << " at " << threshold;
    }
  }
}

TEST(OpenGates, ReluGatesAreOpenAboveTheirThreshold) {
  EXPECT_TRUE(OpenGates{}(0.1F));
  EXPECT_FALSE(OpenGates{}(0.0F));
  EXPECT_FALSE(OpenGates{}(-1.0F));
  EXPECT_FALSE(OpenGates{.above = 0.5F}(0.4F));
}

}  // namespace
}  // namespace ganglion::engine

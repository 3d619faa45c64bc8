#include "engine/trial.h"

#include <gtest/gtest.h>

namespace ganglion::engine {
namespace {

// Tokens of `tokens` that used the option, each taking `with` or `without`.
size_t used_of(Trial& trial, size_t tokens, double with, double without) {
  size_t used = 0;
  for (size_t i = 0; i < tokens; ++i) {
    const bool use = trial.use();
    used += use ? 1 : 0;
    trial.add(use ? with : without, 50);
  }
  return used;
}

TEST(Trial, KeepsWhatPaysAndDropsWhatDoesNot) {
  Trial good;
  EXPECT_GT(used_of(good, 1000, 80, 100), 900U);
  EXPECT_TRUE(good.pays());
  Trial bad;
  EXPECT_LT(used_of(bad, 1000, 120, 100), 100U);
  EXPECT_FALSE(bad.pays());
}

TEST(Trial, DropsWhatGainsLessThanNoise) {
  Trial trial;
  EXPECT_LT(used_of(trial, 1000, 99, 100), 100U);
  EXPECT_FALSE(trial.pays());
}

TEST(Trial, IsNotDeceivedByTokensThatGetFasterAllTheWhile) {
  Trial trial;
  double ns = 200;
  for (int i = 0; i < 20; ++i, ns *= 0.97) trial.add(trial.use() ? 1.05 * ns : ns, 0.5 * ns);
  EXPECT_FALSE(trial.pays());
}

TEST(Trial, IsNotDeceivedByAFewSlowTokens) {
  Trial trial;
  size_t used = 0;
  for (size_t i = 0; i < 1000; ++i) {
    used += trial.use() ? 1 : 0;
    trial.add(!trial.use() && i % 8 < 3 ? 300
              : trial.use()             ? 104
                                        : 100,
              50);  // Slow ones hit those without alone.
  }
  EXPECT_LT(used, 100U);
}

TEST(Trial, IsMadeOnceWhereThereIsNothingToGain) {
  Trial trial;
  size_t used = 0;
  for (size_t i = 0; i < 1000; ++i) {
    used += trial.use() ? 1 : 0;
    trial.add(100, 5);
  }
  EXPECT_GT(used, 0U);
  EXPECT_LE(used, 12U);
}

TEST(Trial, FollowsAChange) {
  Trial trial;
  used_of(trial, 500, 80, 100);
  EXPECT_TRUE(trial.pays());
  used_of(trial, 500, 120, 100);
  EXPECT_FALSE(trial.pays());
}

}  // namespace
}  // namespace ganglion::engine

#include "expert_cache_simulator/simulate.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace ganglion::simulator {
namespace {

// One layer; each pass goes to one expert.
Trace sequence(const std::vector<uint32_t>& experts) {
  Trace trace{"test", 1, 1 + *std::max_element(experts.begin(), experts.end()), {}};
  for (const uint32_t expert : experts) trace.steps.push_back({0, true, {expert}});
  return trace;
}

TEST(Simulate, CountsByHand) {
  // Three experts in turn, two fit: LRU never hits, the optimum every second time.
  const Trace turns = sequence({0, 1, 2, 0, 1, 2, 0, 1, 2});
  EXPECT_EQ(simulate_lru(turns, 2).missed, 9U * kBlocksPerExpert);
  EXPECT_EQ(simulate_optimum(turns, 2).missed, 6U * kBlocksPerExpert);
  EXPECT_EQ(simulate_lru(turns, 3).missed, 3U * kBlocksPerExpert);
  EXPECT_EQ(simulate_engine(turns, 3, {}).missed, 3U * kBlocksPerExpert);
}

TEST(Simulate, AFavouriteIsKept) {
  // Expert 0 every second time, the others only once: it must be read once.
  const Trace trace = sequence({0, 1, 0, 2, 0, 3, 0, 4, 0, 5, 0, 6});
  EXPECT_EQ(simulate_engine(trace, 2, {}).missed, 7U * kBlocksPerExpert);
}

TEST(Simulate, NothingBeatsTheOptimum) {
  for (Family family : families()) {
    family.layers = std::min(family.layers, 2U);
    const Trace trace = generate(family, 60, 3);
    for (const uint32_t percent : {15U, 40U, 80U}) {
      const uint32_t size = std::max(family.used, trace.groups() * percent / 100);
      const Misses best = simulate_optimum(trace, size);
      EXPECT_EQ(best.asked, 60U * family.layers * family.used * kBlocksPerExpert);
      for (const Misses& other : {simulate_lru(trace, size), simulate_engine(trace, size, {})}) {
        EXPECT_EQ(other.asked, best.asked);
        EXPECT_GE(other.missed, best.missed) << family.name;
      }
    }
  }
}

// The bar of the issue, on traces short enough for a test.
TEST(Simulate, TheEnginesPolicyMissesNoMoreThanLru) {
  uint64_t ours = 0;
  uint64_t lru = 0;
  for (Family family : families()) {
    family.layers = std::min(family.layers, 3U);
    const Trace trace = generate(family, 400, 1);
    for (const uint32_t percent : {25U, 50U, 75U}) {
      const uint32_t size = trace.groups() * percent / 100;
      ours += simulate_engine(trace, size, {}).missed;
      lru += simulate_lru(trace, size).missed;
    }
  }
  EXPECT_LE(static_cast<double>(ours), 1.01 * static_cast<double>(lru));
}

TEST(Trace, ReadsWhatIsRecorded) {
  const auto trace = parse_trace("t",
                                 "# ganglion routing 1\n"
                                 "0 0 1 2 5\n0 1 1 5 7\n0 0 3 0 1\n0 1 3 0 1\n"
                                 "1 2 1 1 2\n");
  ASSERT_TRUE(trace.ok()) << trace.status().message();
  ASSERT_EQ(trace.value().steps.size(), 3U);
  EXPECT_EQ(trace.value().steps[0].experts, (std::vector<uint32_t>{2, 5, 7}));
  EXPECT_EQ(trace.value().steps[1].layer, 3U);
  EXPECT_FALSE(trace.value().steps[1].begins_pass);
  EXPECT_TRUE(trace.value().steps[2].begins_pass);
  EXPECT_EQ(trace.value().experts, 8U);
  EXPECT_EQ(trace.value().layers, 4U);
}

TEST(Trace, RefusesOtherText) {
  for (const char* text :
       {"", "# nothing\n", "0 0 1\n", "0 0 1 x\n", "0 0 1 -2\n", "0 0 1 99999999\n", "0 0  1 2\n"})
    EXPECT_FALSE(parse_trace("t", text).ok()) << text;
}

}  // namespace
}  // namespace ganglion::simulator

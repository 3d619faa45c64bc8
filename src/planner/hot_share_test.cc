// The share of an accelerator: none where a call costs more than it saves, more for more tokens, in bounds.
#include "planner/hot_share.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace ganglion::planner {
namespace {

std::vector<float> falling(size_t count) {
  std::vector<float> frequency(count);
  for (size_t i = 0; i < count; ++i)
    frequency[i] = 0.9F * static_cast<float>(count - i) / static_cast<float>(count);
  return frequency;
}

HotShareRequest request_of(std::span<const NeuronSet> sets) {
  return {.sets = sets,
          .block_neurons = 64,
          .most_blocks = 16,
          .over_prediction = 1.1,
          .hop_ns = 1000,
          .times = {{1, 2000, 4000}, {2, 2000, 8000}, {4, 2100, 16000}, {8, 2200, 32000}}};
}

TEST(HotShare, GrowsWithTheTokensAndSavesTime) {
  const std::vector<float> frequency = falling(1024);
  const NeuronSet set = {100, frequency};
  const HotShare share = choose_hot_share(request_of({&set, 1}));
  ASSERT_EQ(share.blocks.size(), 4U);
  EXPECT_TRUE(std::is_sorted(share.blocks.begin(), share.blocks.end()));
  EXPECT_GT(share.blocks[0], 0U);
  EXPECT_GT(share.blocks[3], share.blocks[0]);
  EXPECT_LT(std::max(share.device_ns, share.processor_ns), share.alone_ns);
}

TEST(HotShare, IsNoneWhereAHopCostsMoreThanAllNeuronsOnTheProcessor) {
  const std::vector<float> frequency = falling(1024);
  const NeuronSet set = {100, frequency};
  HotShareRequest request = request_of({&set, 1});
  request.hop_ns = 1e9;
  const HotShare share = choose_hot_share(request);
  EXPECT_EQ(share.blocks, std::vector<uint32_t>(4, 0));
  EXPECT_GT(share.device_ns, share.alone_ns);
}

TEST(HotShare, ASlowDeviceHelpsLargeBatchesFirst) {
  const std::vector<float> frequency = falling(1024);
  const NeuronSet set = {100, frequency};
  HotShareRequest request = request_of({&set, 1});
  request.hop_ns = 40000;
  const HotShare share = choose_hot_share(request);
  EXPECT_EQ(share.blocks[0], 0U);
  EXPECT_GT(share.blocks[3], 0U);
}

TEST(HotShare, KeepsWithinWhatHasRoom) {
  const std::vector<float> frequency = falling(1024);
  const NeuronSet set = {100, frequency};
  HotShareRequest request = request_of({&set, 1});
  request.most_blocks = 2;
  for (const uint32_t blocks : choose_hot_share(request).blocks) EXPECT_LE(blocks, 2U);
  request.most_blocks = 0;
  for (const uint32_t blocks : choose_hot_share(request).blocks) EXPECT_EQ(blocks, 0U);
}

TEST(HotShare, NeuronsOnADeviceTakeNoRoomOfThePrefix) {
  const std::vector<float> frequency = falling(256);
  NeuronSet sets[] = {{100, frequency}, {100, frequency}};
  const std::vector<uint32_t> before = most_frequent(sets, 100 * 64 * 2);
  for (NeuronSet& set : sets) set.hot = 64;
  const std::vector<uint32_t> after = most_frequent(sets, 100 * 64 * 2);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_GE(before[i], 63U);
    EXPECT_EQ(after[i], before[i] + 64);
  }
  EXPECT_EQ(most_frequent(sets, 0), std::vector<uint32_t>(2, 64));
}

}  // namespace
}  // namespace ganglion::planner

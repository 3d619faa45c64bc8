#include "neuron_cache/block_cache.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

#include "neuron_cache/arena.h"

namespace ganglion::neuron_cache {
namespace {

constexpr size_t kSlot = 4096;

TEST(Arena, RegionsShareOneBudgetAndGiveSegmentsBack) {
  Arena arena(4 * kSegmentBytes);
  Region a = Region::reserve(arena, 8 * kSegmentBytes, "a").take();
  Region b = Region::reserve(arena, 8 * kSegmentBytes, "b").take();
  ASSERT_TRUE(a.resize(3 * kSegmentBytes).ok());
  ASSERT_TRUE(b.resize(1).ok());
  EXPECT_EQ(arena.committed_bytes(), 4 * kSegmentBytes);
  const base::Status full = b.resize(2 * kSegmentBytes);
  EXPECT_EQ(full.code(), base::Code::kResources);
  EXPECT_NE(full.message().find("b needs"), std::string::npos);
  a.data()[0] = 7;
  ASSERT_TRUE(a.resize(kSegmentBytes).ok());
  EXPECT_EQ(a.data()[0], 7);
  EXPECT_TRUE(b.resize(3 * kSegmentBytes).ok());
}

TEST(BlockCache, EvictsTheColdestGroupWholeAndNeverAPinnedBlock) {
  std::vector<uint8_t> memory(4 * kSlot);
  BlockCache cache(10, {0, 0, 1, 1, 2, 2}, 3, kSlot);
  ASSERT_TRUE(cache.try_set_memory(memory));
  for (BlockId block : {10U, 11U, 12U, 13U}) {
    uint8_t* slot = cache.begin_load(block, true);
    ASSERT_NE(slot, nullptr);
    cache.complete(block, true, slot);
  }
  cache.touch_group(0);
  cache.touch_group(1);
  cache.touch_group(1);
  EXPECT_EQ(cache.begin_load(14, false), nullptr) << "a group without uses displaces nobody";
  ASSERT_NE(cache.pin(10), nullptr);
  ASSERT_NE(cache.begin_load(14, true), nullptr);
  EXPECT_EQ(cache.state(10), BlockState::kResident) << "pinned";
  EXPECT_EQ(cache.state(11), BlockState::kAbsent) << "the colder group's other block";
  EXPECT_EQ(cache.state(12), BlockState::kResident);
  cache.unpin(10);
}

TEST(BlockCache, GroupsThatGiveWayLeaveOthersAlone) {
  // Ten groups in turn, again and again, through a cache of four: all but one slot keep what they hold.
  constexpr uint32_t kGroups = 10;
  std::vector<uint8_t> memory(4 * kSlot);
  BlockCache cache(0, {}, kGroups, kSlot);
  ASSERT_TRUE(cache.try_set_memory(memory));
  for (int pass = 0; pass < 5; ++pass) {
    size_t hits = 0;
    for (uint32_t group = 0; group < kGroups; ++group) {
      cache.touch_group(group);
      if (cache.state(group) == BlockState::kResident) {
        ++hits;
      } else {
        uint8_t* slot = cache.begin_load(group, true);
        ASSERT_NE(slot, nullptr);
        cache.complete(group, true, slot);
      }
      cache.give_way(group);
    }
    cache.tick();
    EXPECT_GE(hits, pass == 0 ? 0U : 2U) << pass;
  }
}

TEST(BlockCache, APinnedGroupDoesNotGiveWay) {
  std::vector<uint8_t> memory(2 * kSlot);
  BlockCache cache(0, {}, 3, kSlot);
  ASSERT_TRUE(cache.try_set_memory(memory));
  for (uint32_t block : {0U, 1U}) {
    uint8_t* slot = cache.begin_load(block, true);
    cache.complete(block, true, slot);
    cache.give_way(block);
  }
  cache.pin(1);
  ASSERT_NE(cache.begin_load(2, true), nullptr);
  EXPECT_EQ(cache.state(1), BlockState::kResident);
  EXPECT_EQ(cache.state(0), BlockState::kAbsent);
  cache.unpin(1);
}

TEST(BlockCache, HeatFades) {
  BlockCache cache(0, {}, 2, kSlot);
  cache.touch_group(0);
  for (int i = 0; i < 20000; ++i) cache.tick();
  cache.touch_group(1);
  EXPECT_GT(cache.heat(1), 0.0F);
  EXPECT_LT(cache.heat(0), 1e-3F * cache.heat(1));
}

TEST(BlockCache, HeatIsTheRateOfUse) {
  BlockCache cache(0, {}, 2, kSlot);
  for (int i = 0; i < 8000; ++i) {
    cache.tick();
    cache.touch_group(0);
    if (i % 4 == 0) cache.touch_group(1);
  }
  EXPECT_NEAR(cache.heat(0), 1.0F, 0.02F);
  EXPECT_NEAR(cache.heat(1), 0.25F, 0.02F);
}

TEST(BlockCache, ANewFavouriteOvertakesAnOldOneSoon) {
  BlockCache cache(0, {}, 2, kSlot);
  for (int i = 0; i < 2000; ++i) {
    cache.tick();
    cache.touch_group(0);
  }
  int tokens = 0;
  for (; cache.heat(1) <= cache.heat(0); ++tokens) {
    cache.tick();
    cache.touch_group(1);
  }
  EXPECT_GT(tokens, 4);
  EXPECT_LT(tokens, 64);
}

// Loads `block` at once; its slot, or null.
uint8_t* load(BlockCache& cache, BlockId block, bool force = true) {
  uint8_t* slot = cache.begin_load(block, force);
  if (slot != nullptr) cache.complete(block, true, slot);
  return slot;
}

TEST(BlockCache, AGroupLargerThanTheCacheDisplacesItsOwnLastBlocks) {
  std::vector<uint8_t> memory(3 * kSlot);
  BlockCache cache(0, {0, 0, 0, 0, 0}, 1, kSlot);
  ASSERT_TRUE(cache.try_set_memory(memory));
  cache.touch_group(0);
  for (BlockId block : {0U, 1U, 2U}) ASSERT_NE(load(cache, block), nullptr);
  EXPECT_EQ(cache.begin_load(3, false), nullptr) << "only by force";
  ASSERT_NE(cache.pin(2), nullptr);
  ASSERT_NE(load(cache, 3), nullptr);
  EXPECT_EQ(cache.state(2), BlockState::kResident) << "pinned";
  EXPECT_EQ(cache.state(1), BlockState::kAbsent);
  EXPECT_EQ(cache.state(0), BlockState::kResident) << "the next use begins with it";
  ASSERT_NE(cache.pin(0), nullptr);
  ASSERT_NE(cache.pin(3), nullptr);
  EXPECT_EQ(cache.begin_load(4, true), nullptr) << "all are pinned";
  for (BlockId block : {0U, 2U, 3U}) cache.unpin(block);
}

TEST(BlockCache, ForceNeverTakesALoadingSlot) {
  std::vector<uint8_t> memory(2 * kSlot);
  BlockCache cache(0, {}, 4, kSlot);
  ASSERT_TRUE(cache.try_set_memory(memory));
  ASSERT_NE(cache.begin_load(0, true), nullptr);
  ASSERT_NE(cache.begin_load(1, true), nullptr);
  cache.drop(1);
  EXPECT_EQ(cache.begin_load(2, true), nullptr) << "the device still writes into a dropped block's slot";
  cache.complete(1, true, memory.data());
  EXPECT_NE(cache.begin_load(2, true), nullptr);
}

TEST(BlockCache, ADroppedLoadCanBeKeptAfterAll) {
  std::vector<uint8_t> memory(kSlot);
  BlockCache cache(0, {}, 2, kSlot);
  ASSERT_TRUE(cache.try_set_memory(memory));
  uint8_t* slot = cache.begin_load(0, true);
  EXPECT_FALSE(cache.dropped(0));
  cache.drop(0);
  EXPECT_TRUE(cache.dropped(0));
  EXPECT_EQ(cache.state(0), BlockState::kLoading);
  cache.keep(0);
  EXPECT_FALSE(cache.dropped(0));
  cache.complete(0, true, slot);
  EXPECT_EQ(cache.state(0), BlockState::kResident);
  cache.drop(0);
  EXPECT_EQ(cache.state(0), BlockState::kAbsent);
  EXPECT_FALSE(cache.dropped(0)) << "only a loading block can be";
}

TEST(BlockCache, ABlockDroppedWhilePinnedStaysUntilTheLastPinIsGone) {
  std::vector<uint8_t> memory(kSlot);
  BlockCache cache(0, {}, 2, kSlot);
  ASSERT_TRUE(cache.try_set_memory(memory));
  const uint8_t* slot = load(cache, 0);
  ASSERT_EQ(cache.pin(0), slot);
  ASSERT_EQ(cache.pin(0), slot);
  cache.drop(0);
  cache.unpin(0);
  EXPECT_EQ(cache.begin_load(1, true), nullptr);
  cache.unpin(0);
  EXPECT_EQ(cache.state(0), BlockState::kAbsent);
  EXPECT_NE(cache.begin_load(1, false), nullptr);
}

// Random operations against a naive model of states and pins.
TEST(BlockCache, RandomOperationsAgreeWithANaiveModel) {
  constexpr uint32_t kBlocks = 12;
  std::mt19937 random(7);
  std::vector<uint8_t> memory(8 * kSlot);
  std::vector<uint32_t> groups;
  for (uint32_t i = 0; i < kBlocks; ++i) groups.push_back(i / 3);
  BlockCache cache(0, groups, 4, kSlot);
  size_t slots = 5;
  ASSERT_TRUE(cache.try_set_memory(std::span(memory).first(slots * kSlot)));
  std::map<BlockId, uint8_t*> loading;
  std::set<BlockId> dropped;
  std::map<BlockId, int> pins;
  for (int step = 0; step < 200000; ++step) {
    const auto block = static_cast<BlockId>(random() % kBlocks);
    const BlockState state = cache.state(block);
    ASSERT_EQ(state == BlockState::kLoading, loading.count(block) == 1);
    if (pins[block] > 0) {
      ASSERT_EQ(state, BlockState::kResident);
    }
    switch (random() % 8) {
      case 0:
      case 1:
        if (state == BlockState::kAbsent) {
          uint8_t* at = cache.begin_load(block, random() % 2 == 0);
          if (at == nullptr) break;
          for (const auto& [other, slot] : loading) ASSERT_NE(slot, at) << other;
          loading[block] = at;
          dropped.erase(block);
        }
        break;
      case 2:
        if (state == BlockState::kLoading) {
          const bool ok = random() % 4 != 0;
          *loading[block] = static_cast<uint8_t>(block);
          cache.complete(block, ok, loading[block]);
          ASSERT_EQ(cache.state(block),
                    ok && dropped.count(block) == 0 ? BlockState::kResident : BlockState::kAbsent);
          loading.erase(block);
        }
        break;
      case 3:
        if (state == BlockState::kResident) {
          ASSERT_EQ(*cache.pin(block), block) << "another block was loaded over it";
          ++pins[block];
        }
        break;
      case 4:
        if (pins[block] > 0) {
          cache.unpin(block);
          --pins[block];
        }
        break;
      case 5:
        if (pins[block] == 0) {
          cache.drop(block);
          if (state == BlockState::kLoading) dropped.insert(block);
        }
        break;
      case 7:
        if (state == BlockState::kLoading) {
          cache.keep(block);
          dropped.erase(block);
        }
        break;
      case 6:
        cache.touch_group(block / 3);
        cache.tick();
        if (random() % 8 == 0) {
          const size_t wanted = 3 + random() % 6;
          if (cache.try_set_memory(std::span(memory).first(wanted * kSlot))) slots = wanted;
        }
        break;
    }
    if (loading.count(block) > 0) {
      ASSERT_EQ(cache.dropped(block), dropped.count(block) == 1);
    }
    ASSERT_EQ(cache.slot_count(), slots);
    ASSERT_LE(loading.size(), slots);
  }
}

}  // namespace
}  // namespace ganglion::neuron_cache

#include "neuron_cache/bundle_cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

namespace ganglion::neuron_cache {
namespace {

constexpr size_t kSlot = 64;

// Writes a neuron's number into its slot, as its bundle would be.
bool admit(BundleCache& cache, uint32_t neuron) {
  cache.set_mark(neuron, neuron);
  uint8_t* to = cache.admit(neuron);
  if (to != nullptr) std::memcpy(to, &neuron, sizeof neuron);
  return to != nullptr;
}

TEST(BundleCache, RandomUseNeverGivesTheWrongBundle) {
  constexpr uint32_t kNeurons = 200;
  std::mt19937 random(5);
  std::vector<float> frequency(kNeurons);
  for (float& f : frequency) f = static_cast<float>(random() % 100) / 100;
  std::vector<uint8_t> memory(60 * kSlot);
  BundleCache cache(frequency, kSlot);
  cache.set_memory(std::span(memory).first(30 * kSlot));
  for (int step = 0; step < 20000; ++step) {
    const uint32_t neuron = static_cast<uint32_t>(random() % kNeurons);
    const uint32_t place = cache.place(neuron);
    if (place < BundleCache::kFirstMark) {
      uint32_t found = 0;
      std::memcpy(&found, cache.data(place), sizeof found);
      ASSERT_EQ(found, neuron);
      cache.touch(neuron);
    } else {
      cache.touch(neuron);
      const bool cached = admit(cache, neuron);
      ASSERT_EQ(cached, cache.place(neuron) < BundleCache::kFirstMark);
    }
    if (step % 50 == 0) cache.tick();
    // Slots do not move while the memory shrinks and grows behind them.
    if (step % 500 == 0) cache.set_memory(std::span(memory).first((10 + random() % 50) * kSlot));
    ASSERT_LE(cache.used_count(), cache.slot_count());
    size_t placed = 0;
    if (step % 500 == 0) {
      for (uint32_t n = 0; n < kNeurons; ++n) placed += cache.place(n) < BundleCache::kFirstMark ? 1 : 0;
      ASSERT_EQ(placed, cache.used_count());
    }
  }
}

TEST(BundleCache, KeepsTheFrequentOnesAndFollowsAChange) {
  constexpr uint32_t kNeurons = 1000;
  std::vector<float> frequency(kNeurons, 0.01F);
  for (uint32_t n = 0; n < 100; ++n) frequency[n] = 0.5F;
  std::vector<uint8_t> memory(100 * kSlot);
  BundleCache cache(frequency, kSlot);
  cache.set_memory(memory);
  std::mt19937 random(7);
  // Tokens use those from `first` on with the frequencies above, and others rarely. Returns the share found.
  const auto run = [&](uint32_t first, int tokens) {
    size_t hits = 0;
    size_t uses = 0;
    for (int t = 0; t < tokens; ++t) {
      for (uint32_t n = 0; n < kNeurons; ++n) {
        const bool hot = n >= first && n < first + 100;
        if (random() % 1000 >= (hot ? 500U : 10U)) continue;
        ++uses;
        hits += cache.place(n) < BundleCache::kFirstMark ? 1 : 0;
        cache.touch(n);
        if (cache.place(n) == BundleCache::kNowhere) admit(cache, n);
      }
      cache.tick();
    }
    return static_cast<double>(hits) / static_cast<double>(uses);
  };
  run(0, 50);
  EXPECT_GT(run(0, 200), 0.8);  // 50 of 59 uses are of the hot hundred.
  run(500, 400);
  EXPECT_GT(run(500, 200), 0.75) << "the cache did not follow";
}

TEST(BundleCache, WithoutMemoryNothingIsAdmitted) {
  BundleCache cache(std::vector<float>(10, 0.5F), kSlot);
  EXPECT_FALSE(admit(cache, 3));
  EXPECT_EQ(cache.place(3), BundleCache::kNowhere);
}

}  // namespace
}  // namespace ganglion::neuron_cache

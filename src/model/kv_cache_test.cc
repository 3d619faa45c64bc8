#include "model/kv_cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <random>

namespace ganglion::model {
namespace {

using model_config::LayerConfig;
using model_config::ModelConfig;

constexpr size_t kPageBytes = kPagePositions * sizeof(uint64_t);

ModelConfig config_of(const std::vector<uint32_t>& windows) {
  ModelConfig config;
  for (const uint32_t window : windows) {
    LayerConfig layer;
    layer.window = window;
    config.layers.push_back(layer);
  }
  return config;
}

struct Pool {
  explicit Pool(size_t count) : memory(count * kPageBytes), pages(memory, kPageBytes) {}
  std::vector<uint8_t> memory;
  KvPages pages;
};

/// A sequence with what it ought to hold: one number for each layer and position.
class Checked {
 public:
  Checked(KvPages& pages, const ModelConfig& config, size_t context)
      : config_(config),
        context_(context),
        sequence_(pages, config, context),
        released_(config.layers.size()) {}

  size_t length() const { return values_.size(); }
  size_t room() const { return context_ - length(); }

  /// Prepares `count` positions and writes `value`, value + 1, ... there; without `keep` the pass is given up
  /// then.
  base::Status append(size_t count, uint64_t value, bool keep) {
    base::Status status = sequence_.prepare(count);
    if (!status.ok()) return status;
    for (size_t i = 0; i < count; ++i) {
      for (size_t layer = 0; layer < released_.size(); ++layer)
        write(layer, length() + i, value + i + layer * 1000);
    }
    if (!keep) return status;
    for (size_t i = 0; i < count; ++i) values_.push_back(value + i);
    sequence_.advance(count);
    const size_t back = length() - std::min<size_t>(length(), kRewindPositions);
    for (size_t layer = 0; layer < released_.size(); ++layer) {
      released_[layer] =
          std::max(released_[layer], first_visible(layer, back) / kPagePositions * kPagePositions);
    }
    longest_ = std::max(longest_, length());
    return status;
  }

  void rewind(size_t to) {
    bool possible = true;
    for (size_t layer = 0; layer < released_.size() && to > 0; ++layer) {
      const size_t first = first_visible(layer, to);
      if (first < to && first < released_[layer]) possible = false;
    }
    if (to + kRewindPositions >= longest_) {
      ASSERT_TRUE(possible) << "a short rewind is always possible: to " << to << " of " << longest_
                            << ", released " << released_[0];
    }
    ASSERT_EQ(sequence_.try_rewind(to), possible) << "from " << length() << " to " << to;
    if (!possible) return;
    values_.resize(to);
    if (to > 0) return;
    std::fill(released_.begin(), released_.end(), size_t{0});
    longest_ = 0;
  }

  void fork_from(const Checked& other) {
    sequence_.fork_from(other.sequence_);
    values_ = other.values_;
    released_ = other.released_;
    longest_ = other.longest_;
  }
  void clear() {
    sequence_.clear();
    values_.clear();
    longest_ = 0;
    std::fill(released_.begin(), released_.end(), size_t{0});
  }

  /// Everything that the next position sees.
  void check() const {
    ASSERT_EQ(sequence_.length(), length());
    for (size_t layer = 0; layer < released_.size(); ++layer) {
      for (size_t p = first_visible(layer, length()); p < length(); ++p) {
        uint64_t value = 0;
        std::memcpy(&value, sequence_.page(layer, p) + p % kPagePositions * sizeof(value), sizeof(value));
        ASSERT_EQ(value, values_[p] + layer * 1000)
            << "layer " << layer << ", position " << p << " of " << length();
      }
    }
  }

 private:
  size_t first_visible(size_t layer, size_t position) const {
    const size_t window = config_.layers[layer].window;
    return window == 0 || position + 1 <= window ? 0 : position + 1 - window;
  }
  void write(size_t layer, size_t p, uint64_t value) {
    std::memcpy(sequence_.page(layer, p) + p % kPagePositions * sizeof(value), &value, sizeof(value));
  }

  const ModelConfig& config_;
  size_t context_;
  KvSequence sequence_;
  std::vector<uint64_t> values_;
  std::vector<size_t> released_;  // By layer: positions below are gone.
  size_t longest_ = 0;            // Reached since it was empty.
};

TEST(KvSequence, RandomOperationsAgreeWithANaiveModel) {
  for (unsigned seed = 0; seed < 60; ++seed) {
    std::mt19937 random(seed);
    std::vector<uint32_t> windows;
    for (size_t layer = 0; layer < 1 + seed % 4; ++layer) {
      windows.push_back(static_cast<uint32_t>(random() % 2 == 0 ? 0 : 1 + random() % 300));
    }
    const ModelConfig config = config_of(windows);
    constexpr size_t kContext = 700;
    Pool pool(4 * windows.size() * 6);  // Not enough for four long sequences.
    uint64_t next_value = 1;
    {
      std::vector<std::unique_ptr<Checked>> sequences;
      for (int i = 0; i < 4; ++i)
        sequences.push_back(std::make_unique<Checked>(pool.pages, config, kContext));
      for (int step = 0; step < 400; ++step) {
        Checked& one = *sequences[random() % 4];
        Checked& other = *sequences[random() % 4];
        switch (random() % 8) {
          case 0:
            one.rewind(random() % (one.length() + 1));
            break;
          case 1:
            one.rewind(one.length() - std::min<size_t>(one.length(), random() % 20));
            break;
          case 2:
            if (random() % 4 == 0) one.clear();
            break;
          case 3:
            if (&one != &other && one.length() == 0) one.fork_from(other);
            break;
          default: {
            const size_t count = std::min<size_t>(one.room(), 1 + random() % (random() % 3 == 0 ? 150 : 5));
            const base::Status status = one.append(count, next_value, random() % 4 != 0);
            ASSERT_TRUE(status.ok() || status.code() == base::Code::kResources) << status.message();
            next_value += count;
          }
        }
        for (const auto& sequence : sequences) sequence->check();
        if (::testing::Test::HasFatalFailure()) FAIL() << "seed " << seed << ", step " << step;
      }
    }
    ASSERT_EQ(pool.pages.free_count(), pool.pages.count()) << "every page came back";
  }
}

TEST(KvSequence, PagesNeededAreEnoughForAnyChunking) {
  for (unsigned seed = 0; seed < 300; ++seed) {
    std::mt19937 random(seed);
    std::vector<uint32_t> windows;
    for (size_t layer = 0; layer < 1 + seed % 3; ++layer) {
      windows.push_back(static_cast<uint32_t>(random() % 4 == 0 ? 0 : 1 + random() % 400));
    }
    const ModelConfig config = config_of(windows);
    const size_t context = 1 + random() % 1000;
    const size_t chunk = 1 + random() % 200;
    Pool pool(kv_pages_needed(config, context, chunk));
    Checked sequence(pool.pages, config, context);
    for (int step = 0; step < 200; ++step) {
      if (random() % 8 == 0 || sequence.room() == 0) {
        sequence.rewind(random() % 3 == 0 ? 0 : random() % (sequence.length() + 1));
      }
      const size_t count = std::min(sequence.room(), random() % 3 == 0 ? chunk : 1 + random() % chunk);
      if (count == 0) continue;
      const base::Status status = sequence.append(count, step * 1000U, random() % 5 != 0);
      ASSERT_TRUE(status.ok()) << "seed " << seed << ", context " << context << ", chunk " << chunk << ": "
                               << status.message();
    }
    sequence.check();
  }
}

TEST(KvSequence, WindowsNeedFarFewerPagesThanTheContext) {
  EXPECT_EQ(kv_pages_needed(config_of({0}), 6400, 64), 100U);
  EXPECT_LE(kv_pages_needed(config_of({128}), 6400, 64), 5U);
  EXPECT_EQ(kv_pages_needed(config_of({128}), 64, 64), 1U) << "never more than the context";
}

TEST(KvSequence, AFullPoolIsAnErrorThatHarmsNobody) {
  const ModelConfig config = config_of({0});
  Pool pool(3);
  Checked one(pool.pages, config, 1000);
  Checked two(pool.pages, config, 1000);
  ASSERT_TRUE(one.append(100, 1, true).ok());
  ASSERT_TRUE(two.append(60, 500, true).ok());
  const base::Status status = two.append(10, 900, true);
  EXPECT_EQ(status.code(), base::Code::kResources);
  EXPECT_NE(status.message().find("of 3"), std::string::npos) << status.message();
  one.check();
  two.check();
  one.clear();
  ASSERT_TRUE(two.append(10, 900, true).ok());
  two.check();
}

TEST(KvSequence, AForkSharesUntilOneOfThemWrites) {
  const ModelConfig config = config_of({0, 0});
  Pool pool(20);
  Checked one(pool.pages, config, 1000);
  ASSERT_TRUE(one.append(150, 1, true).ok());
  EXPECT_EQ(pool.pages.free_count(), 20U - 6U);
  Checked two(pool.pages, config, 1000);
  two.fork_from(one);
  EXPECT_EQ(pool.pages.free_count(), 20U - 6U) << "nothing is copied yet";
  ASSERT_TRUE(two.append(1, 777, true).ok());
  EXPECT_EQ(pool.pages.free_count(), 20U - 8U) << "the last page of both layers";
  ASSERT_TRUE(one.append(1, 888, true).ok());
  EXPECT_EQ(pool.pages.free_count(), 20U - 8U) << "the original is its own again";
  one.check();
  two.check();
  one.clear();
  two.check();
}

TEST(KvLayout, HeadsAndValuesDoNotOverlap) {
  for (const kernels::KvType type : {kernels::KvType::kF32, kernels::KvType::kF16, kernels::KvType::kQ8_0}) {
    for (const bool latent : {false, true}) {
      ModelConfig config;
      config.key_dims = 96;
      config.value_dims = 64;
      config.mla.kv_rank = latent ? 64 : 0;
      LayerConfig layer;
      layer.kv_heads = 3;
      const KvLayout layout = kv_layout(config, layer, type);
      std::vector<uint8_t> used(layout.page_bytes, 0);
      const auto claim = [&](size_t at, size_t bytes) {
        ASSERT_LE(at + bytes, used.size());
        for (size_t i = at; i < at + bytes; ++i) ASSERT_EQ(used[i]++, 0) << "byte " << i << " is used twice";
      };
      for (uint32_t head = 0; head < 3; ++head) {
        for (uint32_t slot = 0; slot < kPagePositions; ++slot) {
          claim(layout.key_offset(head, slot), layout.key_bytes);
          if (latent) {
            EXPECT_EQ(layout.value_offset(head, slot), layout.key_offset(head, slot));
          } else {
            claim(layout.value_offset(head, slot), layout.value_bytes);
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace ganglion::model

#include "neuron_cache/block_cache.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace ganglion::neuron_cache {

namespace {
constexpr float kRenormalise = 1e20F;
}  // namespace

BlockCache::BlockCache(BlockId first_block, std::vector<uint32_t> group_of, uint32_t group_count,
                       size_t slot_bytes, const EvictionOptions& options)
    : first_block_(first_block), group_of_(std::move(group_of)), slot_bytes_(slot_bytes) {
  GANGLION_CHECK(slot_bytes % 4096 == 0);
  slot_of_.resize(group_of_.empty() ? group_count : group_of_.size(), kNone);
  group_blocks_.resize(group_count);
  for (uint32_t i = 0; i < slot_of_.size(); ++i)
    group_blocks_[group_of_.empty() ? i : group_of_[i]].push_back(i);
  group_resident_.resize(group_count, 0);
  group_new_.resize(group_count, false);
  giving_way_.reserve(group_count);
  recent_.start(group_count, options.short_half_life_ticks, options.short_share);
  lasting_.start(group_count, options.long_half_life_ticks, 1 - options.short_share);
}

bool BlockCache::try_set_memory(std::span<uint8_t> memory) {
  const size_t count = memory.size() / slot_bytes_;
  for (size_t i = count; i < slots_.size(); ++i) {
    if (slots_[i].block != kNone && (slots_[i].loading || slots_[i].pins > 0)) return false;
  }
  for (size_t i = count; i < slots_.size(); ++i) {
    if (slots_[i].block != kNone) free_slot(static_cast<uint32_t>(i));
  }
  std::erase_if(free_, [&](uint32_t slot) { return slot >= count; });
  const size_t old = std::min(slots_.size(), count);
  slots_.resize(count);
  free_.reserve(count);
  for (size_t i = count; i > old; --i) free_.push_back(static_cast<uint32_t>(i - 1));
  GANGLION_CHECK(memory_.empty() || memory.empty() || memory.data() == memory_.data());
  memory_ = memory;
  return true;
}

uint8_t* BlockCache::begin_load(BlockId block, bool force) {
  GANGLION_CHECK(state(block) == BlockState::kAbsent);
  const uint32_t group = group_of(block);
  if (free_.empty()) {
    const float below = force ? std::numeric_limits<float>::infinity() : heat(group);
    const bool found =
        (force && evict_given_way(group)) || evict_coldest(group, below) || (force && evict_one_of(group));
    if (!found) return nullptr;
  }
  const uint32_t slot = free_.back();
  free_.pop_back();
  slots_[slot] = {block, 0, true, false, nullptr};
  slot_of_[block - first_block_] = slot;
  group_new_[group] = true;
  return memory_.data() + slot * slot_bytes_;
}

void BlockCache::complete(BlockId block, bool ok, const uint8_t* data) {
  const uint32_t slot = slot_of_[block - first_block_];
  GANGLION_CHECK(slot != kNone && slots_[slot].loading);
  slots_[slot].loading = false;
  ++group_resident_[group_of(block)];
  if (!ok || slots_[slot].dropped) {
    free_slot(slot);
    return;
  }
  slots_[slot].data = data;
}

const uint8_t* BlockCache::pin(BlockId block) {
  const uint32_t slot = slot_of_[block - first_block_];
  GANGLION_CHECK(slot != kNone && !slots_[slot].loading);
  ++slots_[slot].pins;
  slots_[slot].dropped = false;
  return slots_[slot].data;
}

void BlockCache::unpin(BlockId block) {
  const uint32_t slot = slot_of_[block - first_block_];
  GANGLION_CHECK(slot != kNone && slots_[slot].pins > 0);
  if (--slots_[slot].pins == 0 && slots_[slot].dropped) free_slot(slot);
}

void BlockCache::drop(BlockId block) {
  const uint32_t slot = slot_of_[block - first_block_];
  if (slot == kNone) return;
  if (slots_[slot].loading || slots_[slot].pins > 0) {
    slots_[slot].dropped = true;
  } else {
    free_slot(slot);
  }
}

void BlockCache::keep(BlockId block) {
  const uint32_t slot = slot_of_[block - first_block_];
  GANGLION_CHECK(slot != kNone && slots_[slot].loading);
  slots_[slot].dropped = false;
}

void BlockCache::DecayedUses::start(uint32_t groups, float half_life_ticks, float of_heat) {
  uses.resize(groups, 0);
  growth = std::exp2(1 / half_life_ticks);
  share = of_heat;
  set_scale();
}

void BlockCache::DecayedUses::tick() {
  increment *= growth;
  if (increment >= kRenormalise) {
    for (float& count : uses) count /= increment;
    increment = 1;
  }
  set_scale();
}

void BlockCache::tick() {
  recent_.tick();
  lasting_.tick();
  std::fill(group_new_.begin(), group_new_.end(), false);
  giving_way_.clear();
  made_room_ = 0;
}

void BlockCache::give_way(uint32_t group) {
  if (!group_new_[group]) return;
  giving_way_.push_back(group);
  group_new_[group] = false;
}

bool BlockCache::make_room(uint32_t for_group, uint32_t allowance) {
  if (!free_.empty() || evict_given_way(for_group)) return true;
  if (made_room_ >= allowance || !evict_coldest(for_group, std::numeric_limits<float>::infinity()))
    return false;
  ++made_room_;
  return true;
}

bool BlockCache::evict_given_way(uint32_t but_group) {
  while (!giving_way_.empty() && giving_way_.back() != but_group) {
    const uint32_t group = giving_way_.back();
    giving_way_.pop_back();
    if (evict_group(group)) return true;
  }
  return false;
}

bool BlockCache::evict_coldest(uint32_t but_group, float below) {
  uint32_t coldest = kNone;
  float least = below;
  for (uint32_t group = 0; group < group_blocks_.size(); ++group) {
    if (group_resident_[group] == 0 || group == but_group) continue;
    const float its = heat(group);
    if (!(its < below) || its > least) continue;
    const std::vector<uint32_t>& blocks = group_blocks_[group];
    if (std::none_of(blocks.begin(), blocks.end(),
                     [&](uint32_t block) { return evictable(slot_of_[block]); }))
      continue;
    coldest = group;
    least = its;
  }
  return coldest != kNone && evict_group(coldest);
}

// What of it is neither loading nor pinned; false if that is nothing.
bool BlockCache::evict_group(uint32_t group) {
  bool any = false;
  for (const uint32_t block : group_blocks_[group]) {
    const uint32_t slot = slot_of_[block];
    if (!evictable(slot)) continue;
    free_slot(slot);
    ++evictions_;
    any = true;
  }
  return any;
}

// The last one: a group is used from its first block on, so that the first ones are what the next use meets
// first.
bool BlockCache::evict_one_of(uint32_t group) {
  const std::vector<uint32_t>& blocks = group_blocks_[group];
  const auto last =
      std::find_if(blocks.rbegin(), blocks.rend(), [&](uint32_t b) { return evictable(slot_of_[b]); });
  if (last == blocks.rend()) return false;
  free_slot(slot_of_[*last]);
  ++evictions_;
  return true;
}

void BlockCache::free_slot(uint32_t slot) {
  const BlockId block = slots_[slot].block;
  --group_resident_[group_of(block)];
  slot_of_[block - first_block_] = kNone;
  slots_[slot] = {};
  free_.push_back(slot);
}

}  // namespace ganglion::neuron_cache

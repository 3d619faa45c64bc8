// Which blocks are in memory: slots of one size in a region, their states and pins. Knows no files and starts
// no reads; neuron_stream does. Eviction takes the coldest group (an expert, or one block of a stream).
//
//                 begin_load            complete(ok)
//        ABSENT -------------> LOADING -------------> RESIDENT <--pin/unpin--> RESIDENT (pins > 0)
//          ^                      | complete(failed)     |
//          +----------------------+---- evict (pins = 0) +
//   A block dropped while LOADING becomes ABSENT when its read completes, unless keep() takes the drop back.
//
// Not thread-safe: the engine's thread owns it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/check.h"

namespace ganglion::neuron_cache {

using BlockId = uint32_t;
inline constexpr uint32_t kNone = UINT32_MAX;

enum class BlockState : uint8_t { kAbsent, kLoading, kResident };

struct EvictionOptions {
  /// A group's heat is its rate of use, estimated over a short and a long past and mixed: the short one
  /// follows a change of topic, the long one knows what is used by all topics. A use counts half after so
  /// many tick()s.
  float short_half_life_ticks = 16;
  float long_half_life_ticks = 256;
  float short_share = 0.5F;
};

class BlockCache {
 public:
  /// Serves blocks [first_block, first_block + block_count); `group_of` gives each its group, by offset from
  /// first_block (empty: every block is a group of its own). `slot_bytes` is a multiple of 4096.
  BlockCache(BlockId first_block, std::vector<uint32_t> group_of, uint32_t group_count, size_t slot_bytes,
             const EvictionOptions& options = {});

  /// Uses `memory` as slots. Growing keeps all; shrinking drops what lies beyond: returns false, changing
  /// nothing, while one of those is loading or pinned.
  [[nodiscard]] bool try_set_memory(std::span<uint8_t> memory);

  BlockState state(BlockId block) const {
    const uint32_t slot = slot_of_[block - first_block_];
    return slot == kNone          ? BlockState::kAbsent
           : slots_[slot].loading ? BlockState::kLoading
                                  : BlockState::kResident;
  }

  /// ABSENT -> LOADING. Takes a free slot or evicts the coldest unpinned group that is colder than `block`'s
  /// own. With `force` any other group will do, and where there is none, one unpinned block of its own group:
  /// a group may be larger than the cache. Returns the slot's memory, or null if there is none to take (with
  /// `force`: all slots are loading or pinned).
  uint8_t* begin_load(BlockId block, bool force);
  /// LOADING -> RESIDENT, or ABSENT if it failed or was dropped. `data` is where the block begins in its
  /// slot.
  void complete(BlockId block, bool ok, const uint8_t* data);
  /// RESIDENT -> RESIDENT with one pin more; the data.
  const uint8_t* pin(BlockId block);
  void unpin(BlockId block);
  /// Not wanted any more: evicts a resident unpinned block now, a loading one when it completes.
  void drop(BlockId block);
  /// Whether a block is LOADING for nobody.
  bool dropped(BlockId block) const {
    const uint32_t slot = slot_of_[block - first_block_];
    return slot != kNone && slots_[slot].loading && slots_[slot].dropped;
  }
  /// Takes back the drop of a LOADING block.
  void keep(BlockId block);

  /// Adds one use to a group; older uses count less with every tick().
  void touch_group(uint32_t group) {
    recent_.uses[group] += recent_.increment;
    lasting_.uses[group] += lasting_.increment;
  }
  void tick();
  /// The group has been used and will not be soon: if it was loaded since the last tick(), it is what
  /// begin_load() with `force` displaces first until the next one, the latest first. A prompt uses all
  /// experts in turn: those that give way to each other leave alone what was there before.
  void give_way(uint32_t group);
  /// Makes sure of a free slot for what will be used soon: takes a group that gives way or, for at most
  /// `allowance` times since the last tick(), the coldest (of equals the last: a pass comes to it late).
  [[nodiscard]] bool make_room(uint32_t for_group, uint32_t allowance);
  /// Estimated uses per tick.
  float heat(uint32_t group) const {
    return recent_.rate_scale * recent_.uses[group] + lasting_.rate_scale * lasting_.uses[group];
  }

  uint32_t group_of(BlockId block) const {
    return group_of_.empty() ? block - first_block_ : group_of_[block - first_block_];
  }
  size_t slot_count() const { return slots_.size(); }
  size_t free_count() const { return free_.size(); }
  size_t slot_bytes() const { return slot_bytes_; }
  BlockId first_block() const { return first_block_; }
  size_t block_count() const { return slot_of_.size(); }
  uint64_t evictions() const { return evictions_; }

 private:
  struct Slot {
    BlockId block = kNone;
    uint32_t pins = 0;
    bool loading = false;
    bool dropped = false;
    const uint8_t* data = nullptr;
  };
  /// Uses of each group, older ones counting less.
  struct DecayedUses {
    std::vector<float> uses;
    float increment = 1;   // Weight of a use now: grows, instead of all that was counted shrinking.
    float growth = 1;      // Of `increment` per tick.
    float share = 1;       // Of this estimate in heat().
    float rate_scale = 1;  // share * rate of use per counted use.
    void start(uint32_t groups, float half_life_ticks, float of_heat);
    void tick();
    void set_scale() { rate_scale = share * (growth - 1) / (growth * increment); }
  };
  bool evict_given_way(uint32_t but_group);
  bool evict_coldest(uint32_t but_group, float below);
  bool evict_group(uint32_t group);
  bool evict_one_of(uint32_t group);
  bool evictable(uint32_t slot) const {
    return slot != kNone && !slots_[slot].loading && slots_[slot].pins == 0;
  }
  void free_slot(uint32_t slot);

  BlockId first_block_;
  std::vector<uint32_t> group_of_;
  size_t slot_bytes_;
  std::span<uint8_t> memory_;
  std::vector<Slot> slots_;
  std::vector<uint32_t> free_;
  std::vector<uint32_t> slot_of_;                    // by block
  std::vector<std::vector<uint32_t>> group_blocks_;  // blocks of each group
  std::vector<uint32_t> group_resident_;             // resident blocks of each group
  std::vector<bool> group_new_;                      // a block of it was loaded since the last tick
  std::vector<uint32_t> giving_way_;                 // groups, the latest last
  uint32_t made_room_ = 0;                           // times that the coldest was taken since the last tick
  DecayedUses recent_;
  DecayedUses lasting_;
  uint64_t evictions_ = 0;
};

}  // namespace ganglion::neuron_cache

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

class BlockCache {
 public:
  /// Serves blocks [first_block, first_block + block_count); `group_of` gives each its group, by offset from
  /// first_block (empty: every block is a group of its own). `slot_bytes` is a multiple of 4096.
  BlockCache(BlockId first_block, std::vector<uint32_t> group_of, uint32_t group_count, size_t slot_bytes);

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
  void touch_group(uint32_t group) { heat_[group] += increment_; }
  void tick();
  float heat(uint32_t group) const { return heat_[group] / increment_; }

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
  bool evict_coldest(uint32_t but_group, float below);
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
  std::vector<float> heat_;
  float increment_ = 1;
  uint64_t evictions_ = 0;
};

}  // namespace ganglion::neuron_cache

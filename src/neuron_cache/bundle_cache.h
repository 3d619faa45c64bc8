// Which neurons' bundles are cached: slots of one size, and how warm each neuron is. Knows no files and no
// layers: a neuron is a number. Unlike BlockCache it has no pins: the owner admits and evicts only while
// nobody computes on a slot.
//
//   A neuron's place is kNowhere, a slot, or a mark that the owner set (its bundle is on its way, or staged):
//
//     NOWHERE --set_mark--> MARKED --admit--> CACHED --(a warmer neuron is admitted, or memory shrinks)-->
//     NOWHERE
//                              +---clear_mark---> NOWHERE
//
// Warmth is a use count in which older uses count less; it starts as the calibrated frequency would have left
// it, so that without other evidence the most frequent neurons stay. Source: LFU with ageing; DESIGN of the
// cold region in PowerInfer-2 section 4.2, with use counts in place of LRU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/check.h"

namespace ganglion::neuron_cache {

class BundleCache {
 public:
  static constexpr uint32_t kNowhere = UINT32_MAX;
  static constexpr uint32_t kFirstMark = uint32_t{1} << 31;

  /// `frequency` [neurons]: the share of tokens that use each. `slot_bytes` is a multiple of 64.
  BundleCache(std::span<const float> frequency, size_t slot_bytes);

  /// Uses `memory` as slots; a smaller one evicts what lies beyond it. Slots never move.
  void set_memory(std::span<uint8_t> memory);

  /// kNowhere, a slot below kFirstMark, or a mark.
  uint32_t place(uint32_t neuron) const { return place_[neuron]; }
  const uint8_t* data(uint32_t slot) const { return memory_.data() + slot * slot_bytes_; }

  /// Requires: not cached. `mark` < 2^31.
  void set_mark(uint32_t neuron, uint32_t mark) { place_[neuron] = kFirstMark | mark; }
  void clear_mark(uint32_t neuron) { place_[neuron] = kNowhere; }

  /// Gives the neuron a slot if there is a free one or it is warmer than one of a few that are drawn; its
  /// bundle must then be written to the memory returned. Null: not admitted, its place is then kNowhere.
  uint8_t* admit(uint32_t neuron);

  void touch(uint32_t neuron) { warmth_[neuron] += increment_; }
  /// A token has passed.
  void tick();

  size_t slot_count() const { return neuron_in_.size(); }
  size_t used_count() const { return neuron_in_.size() - free_.size(); }
  uint64_t evictions() const { return evictions_; }
  /// Bytes of tables per neuron.
  static constexpr size_t kTableBytes = sizeof(uint32_t) + sizeof(float);

 private:
  uint32_t coldest_of_a_few();

  size_t slot_bytes_;
  std::span<uint8_t> memory_;
  std::vector<uint32_t> place_;      // by neuron
  std::vector<float> warmth_;        // by neuron
  std::vector<uint32_t> neuron_in_;  // by slot; kNowhere: free
  std::vector<uint32_t> free_;
  float increment_ = 1;
  uint64_t random_ = 0x9e3779b97f4a7c15U;
  uint64_t evictions_ = 0;
};

}  // namespace ganglion::neuron_cache

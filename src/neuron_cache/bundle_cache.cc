#include "neuron_cache/bundle_cache.h"

namespace ganglion::neuron_cache {

namespace {
// A use counts half after so many tokens; a neuron of frequency f then settles at a warmth of f * kSettled.
constexpr float kHalfLife = 128;
constexpr float kGrowth = 1.0054299F;  // 2^(1 / kHalfLife)
constexpr float kSettled = kHalfLife / 0.6931472F;
constexpr float kRescaleAt = 1e20F;
// Drawing a few slots and taking the coldest comes close to the coldest of all, at no cost in order.
constexpr int kDrawn = 8;
}  // namespace

BundleCache::BundleCache(std::span<const float> frequency, size_t slot_bytes)
    : slot_bytes_(slot_bytes), place_(frequency.size(), kNowhere) {
  GANGLION_CHECK(slot_bytes % 64 == 0);
  warmth_.reserve(frequency.size());
  for (const float f : frequency) warmth_.push_back(f * kSettled);
}

void BundleCache::set_memory(std::span<uint8_t> memory) {
  const size_t count = memory.size() / slot_bytes_;
  for (size_t slot = count; slot < neuron_in_.size(); ++slot) {
    if (neuron_in_[slot] != kNowhere) place_[neuron_in_[slot]] = kNowhere;
  }
  const size_t before = neuron_in_.size();
  memory_ = memory;
  neuron_in_.resize(count, kNowhere);
  if (count < before) {
    std::erase_if(free_, [count](uint32_t slot) { return slot >= count; });
  }
  free_.reserve(count);
  for (size_t slot = count; slot > before; --slot) free_.push_back(static_cast<uint32_t>(slot - 1));
}

uint32_t BundleCache::coldest_of_a_few() {
  uint32_t coldest = 0;
  for (int i = 0; i < kDrawn; ++i) {
    random_ = random_ * 6364136223846793005U + 1442695040888963407U;
    const auto slot = static_cast<uint32_t>((random_ >> 32) * neuron_in_.size() >> 32);
    if (i == 0 || warmth_[neuron_in_[slot]] < warmth_[neuron_in_[coldest]]) coldest = slot;
  }
  return coldest;
}

uint8_t* BundleCache::admit(uint32_t neuron) {
  GANGLION_DCHECK(place_[neuron] >= kFirstMark);
  uint32_t slot;
  if (!free_.empty()) {
    slot = free_.back();
    free_.pop_back();
  } else {
    slot = neuron_in_.empty() ? 0 : coldest_of_a_few();
    if (neuron_in_.empty() || warmth_[neuron] <= warmth_[neuron_in_[slot]]) {
      place_[neuron] = kNowhere;
      return nullptr;
    }
    place_[neuron_in_[slot]] = kNowhere;
    ++evictions_;
  }
  neuron_in_[slot] = neuron;
  place_[neuron] = slot;
  return memory_.data() + slot * slot_bytes_;
}

void BundleCache::tick() {
  increment_ *= kGrowth;
  if (increment_ < kRescaleAt) return;
  for (float& value : warmth_) value /= increment_;
  increment_ = 1;
}

}  // namespace ganglion::neuron_cache

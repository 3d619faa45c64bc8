#include "tokenizer/string_index.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/check.h"

namespace ganglion::tokenizer {

namespace {

constexpr uint64_t kMultiplier = 0x9E3779B97F4A7C15;  // 2^64 divided by the golden ratio, made odd.
constexpr size_t kMinSlots = 8;

// Two thirds full at most: a hit then takes about two probes, at six bytes of table a string.
size_t slots_for(size_t count) {
  return std::max(kMinSlots, count + count / 2);
}

uint64_t mix(uint64_t hash, uint64_t word) {
  hash = (hash ^ word) * kMultiplier;
  return hash ^ (hash >> 32);
}

uint64_t hash_of(std::string_view text) {
  uint64_t hash = text.size() * kMultiplier;
  size_t at = 0;
  for (; at + 8 <= text.size(); at += 8) {
    uint64_t word;
    std::memcpy(&word, text.data() + at, 8);
    hash = mix(hash, word);
  }
  uint64_t word = 0;
  if (at < text.size()) std::memcpy(&word, text.data() + at, text.size() - at);
  return mix(mix(hash, word), kMultiplier);
}

}  // namespace

uint32_t StringPool::add(std::string_view text) {
  bytes_.insert(bytes_.end(), text.begin(), text.end());
  begins_.push_back(static_cast<uint32_t>(bytes_.size()));
  return size() - 1;
}

void StringPool::reserve(size_t count, size_t byte_count) {
  begins_.reserve(count + 1);
  bytes_.reserve(byte_count);
}

void StringPool::shrink() {
  begins_.shrink_to_fit();
  bytes_.shrink_to_fit();
}

void StringIndex::reserve(const StringPool& pool, size_t count, uint32_t id_end) {
  rebuild(pool, slots_for(count), id_end);
}

uint32_t StringIndex::entry(uint64_t hash, uint32_t id) const {
  return static_cast<uint32_t>(hash) << id_bits_ | id;
}

void StringIndex::rebuild(const StringPool& pool, size_t slot_count, uint32_t id_end) {
  std::vector<uint32_t> ids;
  const uint32_t id_mask = (1U << id_bits_) - 1;
  for (uint32_t slot : slots_) {
    if (slot != kNoId) ids.push_back(slot & id_mask);
  }
  id_end_ = id_end;
  // One value more than the ids need, so that no entry equals the mark of an empty slot.
  id_bits_ = std::max(1U, static_cast<uint32_t>(std::bit_width(id_end)));
  GANGLION_CHECK(id_bits_ < 32);
  slots_.assign(slot_count, kNoId);
  used_ = 0;
  for (uint32_t id : ids) insert(pool, id);
}

uint32_t StringIndex::insert(const StringPool& pool, uint32_t id) {
  if (id >= id_end_ || slots_for(used_ + 1) > slots_.size()) {
    rebuild(pool, std::max(slots_.size(), slots_for(used_ + used_ / 4 + 16)),
            std::max(id_end_, id + id / 8 + 64));
  }
  const std::string_view text = pool[id];
  const uint64_t hash = hash_of(text);
  const uint32_t wanted = entry(hash, id);
  const uint32_t id_mask = (1U << id_bits_) - 1;
  for (size_t at = home(hash);; at = at + 1 == slots_.size() ? 0 : at + 1) {
    if (slots_[at] == kNoId) {
      slots_[at] = wanted;
      ++used_;
      return id;
    }
    if (((slots_[at] ^ wanted) & ~id_mask) == 0 && pool[slots_[at] & id_mask] == text)
      return slots_[at] & id_mask;
  }
}

uint32_t StringIndex::find(const StringPool& pool, std::string_view text) const {
  if (slots_.empty()) return kNoId;
  const uint64_t hash = hash_of(text);
  const uint32_t wanted = entry(hash, 0);
  const uint32_t id_mask = (1U << id_bits_) - 1;
  for (size_t at = home(hash); slots_[at] != kNoId; at = at + 1 == slots_.size() ? 0 : at + 1) {
    if (((slots_[at] ^ wanted) & ~id_mask) == 0 && pool[slots_[at] & id_mask] == text)
      return slots_[at] & id_mask;
  }
  return kNoId;
}

size_t MergeTable::home(uint32_t left, uint32_t right) const {
  const uint64_t hash = mix(mix(left, right), kMultiplier);
  return static_cast<size_t>(((hash >> 32) * slots_.size()) >> 32);
}

void MergeTable::reserve(size_t count) {
  merges_.reserve(count);
  slots_.assign(slots_for(count), kNoId);
}

void MergeTable::add(Merge merge) {
  GANGLION_CHECK(slots_for(merges_.size() + 1) <= slots_.size());
  const uint32_t rank = static_cast<uint32_t>(merges_.size());
  merges_.push_back(merge);
  size_t at = home(merge.left, merge.right);
  for (; slots_[at] != kNoId; at = at + 1 == slots_.size() ? 0 : at + 1) {
    if (merges_[slots_[at]].left == merge.left && merges_[slots_[at]].right == merge.right) return;
  }
  slots_[at] = rank;
}

uint32_t MergeTable::find(uint32_t left, uint32_t right) const {
  if (slots_.empty()) return kNoId;
  for (size_t at = home(left, right); slots_[at] != kNoId; at = at + 1 == slots_.size() ? 0 : at + 1) {
    const Merge& merge = merges_[slots_[at]];
    if (merge.left == left && merge.right == right) return slots_[at];
  }
  return kNoId;
}

}  // namespace ganglion::tokenizer

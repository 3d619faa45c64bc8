// Where a vocabulary's bytes lie: one pool of strings and a hash table of 32-bit entries over it. Built once,
// then read only. A vocabulary counts in the memory budget, so nothing here costs a pointer per string.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace ganglion::tokenizer {

inline constexpr uint32_t kNoId = 0xFFFFFFFF;

/// Strings numbered from 0, one after the other in one buffer. At most 4 GiB in all (the loader checks).
class StringPool {
 public:
  StringPool() : begins_{0} {}

  uint32_t add(std::string_view text);
  void reserve(size_t count, size_t byte_count);
  void shrink();

  uint32_t size() const { return static_cast<uint32_t>(begins_.size() - 1); }
  std::string_view operator[](uint32_t id) const {
    return std::string_view(bytes_.data() + begins_[id], begins_[id + 1] - begins_[id]);
  }
  size_t memory_bytes() const { return bytes_.capacity() + begins_.capacity() * sizeof(uint32_t); }

 private:
  std::vector<char> bytes_;
  std::vector<uint32_t> begins_;
};

/// Finds strings of a pool, by open addressing with linear probing. An entry holds the string's number in its
/// low bits and as much of the hash as fits above, so that a miss rarely touches the pool.
class StringIndex {
 public:
  /// Makes room for `count` strings numbered below `id_end`.
  void reserve(const StringPool& pool, size_t count, uint32_t id_end);
  /// Adds string `id` of the pool; returns the number of an equal string that is already in, else `id`.
  uint32_t insert(const StringPool& pool, uint32_t id);
  /// kNoId if `text` is not in.
  uint32_t find(const StringPool& pool, std::string_view text) const;

  size_t memory_bytes() const { return slots_.capacity() * sizeof(uint32_t); }

 private:
  uint32_t entry(uint64_t hash, uint32_t id) const;
  size_t home(uint64_t hash) const { return static_cast<size_t>(((hash >> 32) * slots_.size()) >> 32); }
  void rebuild(const StringPool& pool, size_t slot_count, uint32_t id_end);

  std::vector<uint32_t> slots_;
  size_t used_ = 0;
  uint32_t id_end_ = 0;
  uint32_t id_bits_ = 1;
};

/// Finds the merge of two adjacent symbols. A merge's rank is its place in the list; the lowest goes first.
class MergeTable {
 public:
  struct Merge {
    uint32_t left;
    uint32_t right;
    uint32_t result;
  };

  void reserve(size_t count);
  /// Appends a merge; a pair that is already there keeps its lower rank (this one is then never found).
  void add(Merge merge);
  /// The rank of the pair, or kNoId.
  uint32_t find(uint32_t left, uint32_t right) const;
  const Merge& operator[](uint32_t rank) const { return merges_[rank]; }
  size_t size() const { return merges_.size(); }

  size_t memory_bytes() const {
    return merges_.capacity() * sizeof(Merge) + slots_.capacity() * sizeof(uint32_t);
  }

 private:
  size_t home(uint32_t left, uint32_t right) const;

  std::vector<Merge> merges_;
  std::vector<uint32_t> slots_;
};

}  // namespace ganglion::tokenizer

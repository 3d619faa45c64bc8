// Walks a set of strings byte by byte, as a trie would, over nothing but a sorted list of their numbers:
// finds the special token that starts at a place of a text, and every unigram token that does.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "tokenizer/string_index.h"

namespace ganglion::tokenizer {

class PrefixIndex {
 public:
  /// The strings that begin with the bytes stepped over so far: ids_[begin, end).
  struct Cursor {
    uint32_t begin = 0;
    uint32_t end = 0;
    uint32_t depth = 0;
  };

  PrefixIndex() { first_.fill(0); }

  /// `ids` number non-empty strings of `pool`, which must outlive every later call's use of it.
  void build(const StringPool& pool, std::vector<uint32_t> ids);

  Cursor start() const { return {0, static_cast<uint32_t>(ids_.size()), 0}; }
  /// Narrows the cursor by one byte; false (and the cursor is spent) when no string is left.
  [[nodiscard]] bool try_step(const StringPool& pool, uint8_t byte, Cursor* cursor) const;
  /// The string that equals the bytes stepped over, or kNoId.
  uint32_t whole(const StringPool& pool, const Cursor& cursor) const {
    return pool[ids_[cursor.begin]].size() == cursor.depth ? ids_[cursor.begin] : kNoId;
  }
  bool starts_with(uint8_t byte) const { return first_[byte] != first_[byte + 1U]; }

  const std::vector<uint32_t>& sorted_ids() const { return ids_; }
  size_t memory_bytes() const { return ids_.capacity() * sizeof(uint32_t) + sizeof(first_); }

 private:
  std::vector<uint32_t> ids_;
  std::array<uint32_t, 257> first_;  ///< Strings with first byte b are ids_[first_[b], first_[b + 1]).
};

}  // namespace ganglion::tokenizer

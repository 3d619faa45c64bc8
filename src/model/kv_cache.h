// Keys and values of sequences in pages of 64 positions. Pages are reference-counted and copied before a
// shared one is written, so that sequences can share a prefix; block tables map positions to pages. Layers
// with a window give back the pages that no later position can see.
//
//   page:  free --allocate--> owned (refs 1) --fork--> shared (refs > 1) --write--> copy, refs - 1
//          owned/shared --release--> refs - 1, free at 0
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "kernels/kernel_table.h"
#include "model_config/model_config.h"

namespace ganglion::model {

inline constexpr uint32_t kPagePositions = 64;
/// A rewind to so many positions before the longest length reached is always possible: windowed layers keep
/// what it needs.
inline constexpr uint32_t kRewindPositions = 64;
inline constexpr uint32_t kNoPage = UINT32_MAX;

/// Where a layer's keys and values lie in a page: [kv_heads][64][key], then [kv_heads][64][value]. With MLA a
/// value is the beginning of its key and takes no room.
struct KvLayout {
  kernels::KvType type = kernels::KvType::kF16;
  uint32_t kv_heads = 0;
  uint32_t key_dims = 0;
  uint32_t value_dims = 0;
  bool value_in_key = false;
  size_t key_bytes = 0;    ///< One head at one position.
  size_t value_bytes = 0;  ///< Likewise.
  size_t page_bytes = 0;

  size_t key_offset(uint32_t head, uint32_t slot) const {
    return (size_t{head} * kPagePositions + slot) * key_bytes;
  }
  size_t value_offset(uint32_t head, uint32_t slot) const {
    return value_in_key ? key_offset(head, slot)
                        : size_t{kv_heads} * kPagePositions * key_bytes +
                              (size_t{head} * kPagePositions + slot) * value_bytes;
  }
};

/// Bytes of `dims` elements stored as `type`.
size_t kv_row_bytes(kernels::KvType type, uint32_t dims);

KvLayout kv_layout(const model_config::ModelConfig& config, const model_config::LayerConfig& layer,
                   kernels::KvType type);

/// Pages that sequences up to `context` positions, evaluated in chunks of `chunk`, need in all layers
/// together.
size_t kv_pages_needed(const model_config::ModelConfig& config, size_t context, size_t chunk);

/// The pool of pages, all of one size, in memory that the caller owns. Not thread-safe.
class KvPages {
 public:
  KvPages(std::span<uint8_t> memory, size_t page_bytes);

  /// Adds pages where the memory has grown at its end (the beginning stays where it is).
  void extend(std::span<uint8_t> memory);
  /// A page with one reference, or kNoPage.
  uint32_t allocate();
  void add_reference(uint32_t page) { ++references_[page]; }
  void release(uint32_t page);
  bool shared(uint32_t page) const { return references_[page] > 1; }
  uint8_t* data(uint32_t page) const { return memory_.data() + size_t{page} * page_bytes_; }
  size_t page_bytes() const { return page_bytes_; }
  size_t free_count() const { return free_.size(); }
  size_t count() const { return references_.size(); }

 private:
  std::span<uint8_t> memory_;
  size_t page_bytes_;
  std::vector<uint32_t> references_;
  std::vector<uint32_t> free_;
};

/// Block tables of one sequence. Owned by a session; the pool must outlive it. Not thread-safe.
class KvSequence {
 public:
  KvSequence(KvPages& pages, const model_config::ModelConfig& config, size_t context);
  ~KvSequence();
  KvSequence(const KvSequence&) = delete;
  KvSequence& operator=(const KvSequence&) = delete;

  /// Makes positions [length, length + count) of every layer writable.
  /// Errors: kResources if the pool has no page left (the sequence is then unchanged in what it can read).
  base::Status prepare(size_t count);
  /// Pages that prepare(count) will take from the pool.
  size_t pages_missing(size_t count) const;
  /// The positions prepared have been written; frees what windows no longer reach.
  void advance(size_t count);
  /// Forgets positions from `length` on. Windowed layers must still hold what position `length` sees, else
  /// false.
  [[nodiscard]] bool try_rewind(size_t length);
  /// This sequence becomes a copy of `other`, sharing its pages. Requires: an empty sequence of the same
  /// pool.
  void fork_from(const KvSequence& other);
  /// An empty sequence gets pages for `length` positions, of each layer those from first_pages[layer] on,
  /// which the caller fills. Errors: kResources if the pool has too few pages (the sequence stays empty).
  base::Status restore(size_t length, std::span<const size_t> first_pages);
  void clear();

  size_t length() const { return length_; }
  size_t layer_count() const { return tables_.size(); }
  /// The first page in memory that `layer` can see from the sequence's end on; all after it are there too.
  size_t first_page(size_t layer) const;
  /// The last first_page() with which `layer` can go on after `length` positions.
  size_t last_first_page(size_t layer, size_t length) const {
    return std::min(first_visible(layer, length), length) / kPagePositions;
  }
  /// Page of `layer` that holds `position`.
  uint8_t* page(size_t layer, size_t position) const {
    return pages_.data(tables_[layer][position / kPagePositions]);
  }

 private:
  size_t first_visible(size_t layer, size_t position) const;

  KvPages& pages_;
  std::vector<uint32_t> windows_;
  std::vector<std::vector<uint32_t>> tables_;
  size_t length_ = 0;
};

}  // namespace ganglion::model

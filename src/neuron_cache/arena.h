// The memory that the budget grants, as regions of address space. A region reserves all it could ever need
// and commits whole segments of 2 MiB as it grows; every committed segment counts against the arena's budget.
// A use that shrinks gives its last segments back to the system and so to the other uses.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/status.h"

namespace ganglion::neuron_cache {

inline constexpr size_t kSegmentBytes = size_t{2} << 20;

/// Counts segments. Outlives its regions. Not thread-safe.
class Arena {
 public:
  explicit Arena(size_t budget_bytes) : budget_bytes_(budget_bytes) {}
  size_t budget_bytes() const { return budget_bytes_; }
  /// Regions above a lower budget keep what they have; they only cannot grow.
  void set_budget_bytes(size_t budget_bytes) { budget_bytes_ = budget_bytes; }
  size_t committed_bytes() const { return committed_bytes_; }

 private:
  friend class Region;
  size_t budget_bytes_;
  size_t committed_bytes_ = 0;
};

/// One use of the arena: contiguous, 2 MiB aligned, never moves. Not thread-safe.
class Region {
 public:
  Region() = default;
  ~Region();
  Region(Region&& other) noexcept;
  Region& operator=(Region&& other) noexcept;

  /// Reserves address space for at most `limit_bytes`; commits nothing. Errors: kResources.
  static base::Result<Region> reserve(Arena& arena, size_t limit_bytes, const char* use);

  /// Commits up to `bytes` in all (rounded up to segments); less than now gives segments back.
  /// Errors: kResources if the arena's budget or the reservation does not hold it (nothing changes then).
  base::Status resize(size_t bytes);

  uint8_t* data() const { return data_; }
  size_t size() const { return size_; }
  std::span<uint8_t> bytes() const { return {data_, size_}; }

 private:
  Arena* arena_ = nullptr;
  uint8_t* data_ = nullptr;
  size_t limit_ = 0;
  size_t size_ = 0;
  std::string use_;
};

}  // namespace ganglion::neuron_cache

#include "neuron_cache/arena.h"

#include <algorithm>
#include <utility>

#include "base/units.h"
#include "platform/memory.h"

namespace ganglion::neuron_cache {

using base::Code;
using base::Result;
using base::Status;

Result<Region> Region::reserve(Arena& arena, size_t limit_bytes, const char* use) {
  Region region;
  region.limit_ = base::round_up(std::max<size_t>(limit_bytes, 1), kSegmentBytes);
  region.data_ = platform::reserve_address_space(region.limit_);
  if (region.data_ == nullptr) {
    return Status(Code::kResources, base::format("the system refused %s of address space for %s (ulimit -v?)",
                                                 base::format_bytes(region.limit_).c_str(), use));
  }
  region.arena_ = &arena;
  region.use_ = use;
  return region;
}

Region::~Region() {
  if (data_ == nullptr) return;
  arena_->committed_bytes_ -= size_;
  platform::release_address_space(data_, limit_);
}

Region::Region(Region&& other) noexcept {
  *this = std::move(other);
}

Region& Region::operator=(Region&& other) noexcept {
  std::swap(arena_, other.arena_);
  std::swap(data_, other.data_);
  std::swap(limit_, other.limit_);
  std::swap(size_, other.size_);
  std::swap(use_, other.use_);
  return *this;
}

Status Region::resize(size_t bytes) {
  const size_t wanted = base::round_up(bytes, kSegmentBytes);
  if (wanted > limit_ ||
      (wanted > size_ && arena_->committed_bytes_ + (wanted - size_) > arena_->budget_bytes_)) {
    return Status(
        Code::kResources,
        base::format("%s needs %s, but the arena of %s has %s left", use_.c_str(),
                     base::format_bytes(wanted).c_str(), base::format_bytes(arena_->budget_bytes_).c_str(),
                     base::format_bytes(arena_->budget_bytes_ - arena_->committed_bytes_).c_str()));
  }
  if (wanted > size_) platform::advise_huge_pages(data_ + size_, wanted - size_);
  if (wanted < size_) platform::discard_pages(data_ + wanted, size_ - wanted);
  arena_->committed_bytes_ = arena_->committed_bytes_ + wanted - size_;
  size_ = wanted;
  return base::ok_status();
}

}  // namespace ganglion::neuron_cache

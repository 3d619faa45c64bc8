// Memory of its own, as weights have: what the allocator keeps after it would come on top of a budget.
#pragma once

#include <span>

#include "base/units.h"
#include "neuron_cache/arena.h"
#include "platform/memory.h"

namespace ganglion::profile {

/// Huge pages where there are any. Without address space it is empty.
class Mapping {
 public:
  explicit Mapping(size_t bytes)
      : mapped_bytes_(base::round_up(bytes, neuron_cache::kSegmentBytes)),
        data_(platform::reserve_address_space(mapped_bytes_)),
        bytes_(data_ != nullptr ? bytes : 0) {
    if (data_ != nullptr) platform::advise_huge_pages(data_, mapped_bytes_);
  }
  ~Mapping() {
    if (data_ != nullptr) platform::release_address_space(data_, mapped_bytes_);
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  template <typename T = uint8_t>
  std::span<T> as() const {
    return {reinterpret_cast<T*>(data_), bytes_ / sizeof(T)};
  }

 private:
  size_t mapped_bytes_;
  uint8_t* data_;
  size_t bytes_;
};

}  // namespace ganglion::profile

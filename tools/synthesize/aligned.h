// Memory as kernels want it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/units.h"

namespace ganglion::synthesize {

/// Bytes on a 64-byte boundary, zero at first. Movable, not copyable.
class AlignedBytes {
 public:
  AlignedBytes() = default;
  explicit AlignedBytes(size_t bytes) : storage_(bytes + kAlignment) {}
  AlignedBytes(AlignedBytes&&) = default;
  AlignedBytes& operator=(AlignedBytes&&) = default;

  uint8_t* bytes() {
    return reinterpret_cast<uint8_t*>(
        base::round_up(reinterpret_cast<uintptr_t>(storage_.data()), kAlignment));
  }
  float* floats() { return reinterpret_cast<float*>(bytes()); }

 private:
  static constexpr size_t kAlignment = 64;
  std::vector<uint8_t> storage_;
};

}  // namespace ganglion::synthesize

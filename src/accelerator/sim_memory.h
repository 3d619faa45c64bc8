// Memory with two views: the processor's, which faults unless an access is open, and the device's.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/status.h"

namespace ganglion::accelerator {

class SimMemory {
 public:
  /// Zeroed. Errors: kResources.
  static base::Result<SimMemory> create(size_t bytes);
  SimMemory(SimMemory&& other) noexcept;
  SimMemory& operator=(SimMemory&& other) noexcept;
  SimMemory(const SimMemory&) = delete;
  SimMemory& operator=(const SimMemory&) = delete;
  ~SimMemory();

  /// What the processor may do with its view.
  enum class Protection : uint8_t { kNone, kRead, kReadWrite };
  void protect(Protection protection) const;

  uint8_t* processor() const { return processor_; }
  uint8_t* device() const { return device_; }
  size_t bytes() const { return bytes_; }

 private:
  SimMemory() = default;
  uint8_t* processor_ = nullptr;
  uint8_t* device_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace ganglion::accelerator

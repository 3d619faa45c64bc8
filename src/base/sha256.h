// SHA-256 of a stream of bytes. Source: FIPS 180-4.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace ganglion::base {

class Sha256 {
 public:
  Sha256();
  void update(std::span<const uint8_t> bytes);
  /// Lower-case hex digest; the object is used up.
  std::string finish();

 private:
  void block(const uint8_t* bytes);

  uint32_t state_[8];
  uint8_t pending_[64];
  size_t pending_size_ = 0;
  uint64_t total_bytes_ = 0;
};

}  // namespace ganglion::base

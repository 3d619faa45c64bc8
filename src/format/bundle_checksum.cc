#include "format/bundle_checksum.h"

#include <algorithm>
#include <cstring>

namespace ganglion::format {

// Multiply and xor over words of 8 bytes; the last one is padded with zeros, the length is the seed.
uint64_t bundle_checksum(std::span<const uint8_t> bytes) {
  constexpr uint64_t kPrime = 0x9e3779b97f4a7c15U;
  uint64_t hash = bytes.size() * kPrime;
  for (size_t i = 0; i < bytes.size(); i += 8) {
    uint64_t word = 0;
    std::memcpy(&word, bytes.data() + i, std::min<size_t>(8, bytes.size() - i));
    hash = (hash ^ word) * kPrime;
    hash ^= hash >> 29;
  }
  return hash;
}

}  // namespace ganglion::format

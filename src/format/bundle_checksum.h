// The checksum of a bundle's parts in a pack: see docs/pack_format.md. The writer and all checkers share it.
#pragma once

#include <cstdint>
#include <span>

namespace ganglion::format {

/// 64 bits over the bytes of a gate row, or of the rest of a bundle; also over those of a saved key-value
/// page. Cost: about 4 bytes a cycle.
uint64_t bundle_checksum(std::span<const uint8_t> bytes);

}  // namespace ganglion::format

// Drafts the next tokens by what followed the same tokens before. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace ganglion::engine {

/// Looks for the last earlier occurrence of the longest suffix of `tokens` (3 tokens, else 2) and copies up
/// to draft.size() tokens that followed it. Returns how many; 0 if the suffix is new.
size_t draft_by_lookup(std::span<const int32_t> tokens, std::span<int32_t> draft);

}  // namespace ganglion::engine

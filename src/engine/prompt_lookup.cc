#include "engine/prompt_lookup.h"

#include <algorithm>

namespace ganglion::engine {

size_t draft_by_lookup(std::span<const int32_t> tokens, std::span<int32_t> draft) {
  constexpr size_t kLongest = 3;
  constexpr size_t kShortest = 2;
  for (size_t n = kLongest; n >= kShortest; --n) {
    if (tokens.size() <= n) continue;
    const std::span<const int32_t> suffix = tokens.last(n);
    for (size_t at = tokens.size() - n; at-- > 0;) {
      if (!std::equal(suffix.begin(), suffix.end(), tokens.begin() + static_cast<ptrdiff_t>(at))) continue;
      const std::span<const int32_t> after = tokens.subspan(at + n);
      const size_t count = std::min(after.size(), draft.size());
      std::copy_n(after.begin(), count, draft.begin());
      return count;
    }
  }
  return 0;
}

}  // namespace ganglion::engine

#include "tokenizer/prefix_index.h"

#include <algorithm>

namespace ganglion::tokenizer {

void PrefixIndex::build(const StringPool& pool, std::vector<uint32_t> ids) {
  ids_ = std::move(ids);
  ids_.shrink_to_fit();
  // std::string_view orders bytes as unsigned, with a prefix before its extensions.
  std::sort(ids_.begin(), ids_.end(), [&](uint32_t a, uint32_t b) {
    const int order = pool[a].compare(pool[b]);
    return order != 0 ? order < 0 : a < b;
  });
  size_t at = 0;
  for (unsigned byte = 0; byte < 256; ++byte) {
    first_[byte] = static_cast<uint32_t>(at);
    while (at < ids_.size() && static_cast<uint8_t>(pool[ids_[at]][0]) == byte) ++at;
  }
  first_[256] = static_cast<uint32_t>(at);
}

bool PrefixIndex::try_step(const StringPool& pool, uint8_t byte, Cursor* cursor) const {
  if (cursor->depth == 0) {
    *cursor = {first_[byte], first_[byte + 1U], 1};
    return cursor->begin != cursor->end;
  }
  const uint32_t depth = cursor->depth;
  // The string that ends here sorts before all bytes.
  auto byte_of = [&](uint32_t id) {
    const std::string_view text = pool[id];
    return text.size() > depth ? static_cast<int>(static_cast<uint8_t>(text[depth])) : -1;
  };
  const auto begin = ids_.begin() + cursor->begin;
  const auto end = ids_.begin() + cursor->end;
  const auto low = std::partition_point(begin, end, [&](uint32_t id) { return byte_of(id) < byte; });
  const auto high = std::partition_point(low, end, [&](uint32_t id) { return byte_of(id) <= byte; });
  cursor->begin = static_cast<uint32_t>(low - ids_.begin());
  cursor->end = static_cast<uint32_t>(high - ids_.begin());
  cursor->depth = depth + 1;
  return cursor->begin != cursor->end;
}

}  // namespace ganglion::tokenizer

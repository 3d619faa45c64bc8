#include "tokenizer/charsmap.h"

#include <bit>
#include <cstring>

#include "base/units.h"

namespace ganglion::tokenizer {

static_assert(std::endian::native == std::endian::little, "the array is read as it lies in the file");

namespace {

// Units of Darts-clone, the double array that SentencePiece writes: offset in bits 10-30 (times 256 with bit
// 9), "has a value" in bit 8, the label in bits 0-7; a unit with bit 31 holds a value.
uint32_t offset_of(uint32_t unit) {
  return (unit >> 10) << ((unit & (1U << 9)) >> 6);
}
bool has_value(uint32_t unit) {
  return ((unit >> 8) & 1U) != 0;
}
uint32_t label_of(uint32_t unit) {
  return unit & (1U << 31 | 0xFFU);
}
uint32_t value_of(uint32_t unit) {
  return unit & ~(1U << 31);
}

}  // namespace

base::Result<Charsmap> Charsmap::create(std::span<const uint8_t> bytes) {
  uint32_t array_bytes = 0;
  if (bytes.size() >= sizeof(array_bytes)) std::memcpy(&array_bytes, bytes.data(), sizeof(array_bytes));
  if (bytes.size() < sizeof(array_bytes) || array_bytes % sizeof(uint32_t) != 0 ||
      array_bytes >= bytes.size() - sizeof(array_bytes) || bytes.back() != 0) {
    return base::Status(
        base::Code::kModelFile,
        base::format("metadata key 'tokenizer.ggml.precompiled_charsmap' has %zu bytes, which do "
                     "not hold its array of %u bytes and the texts after it",
                     bytes.size(), array_bytes));
  }
  Charsmap out;
  out.units_.resize(array_bytes / sizeof(uint32_t));
  if (!out.units_.empty()) std::memcpy(out.units_.data(), bytes.data() + sizeof(array_bytes), array_bytes);
  const auto rest = bytes.subspan(sizeof(array_bytes) + array_bytes);
  out.replacements_.assign(reinterpret_cast<const char*>(rest.data()), rest.size());
  return out;
}

Charsmap::Match Charsmap::match(std::string_view text) const {
  Match best;
  if (units_.empty()) return best;
  uint32_t at = offset_of(unit(0));
  for (size_t i = 0; i < text.size() && text[i] != 0; ++i) {
    const auto byte = static_cast<uint8_t>(text[i]);
    at ^= byte;
    const uint32_t node = unit(at);
    if (label_of(node) != byte) break;
    at ^= offset_of(node);
    if (!has_value(node)) continue;
    const uint32_t begin = value_of(unit(at));
    if (begin >= replacements_.size()) break;
    best = {i + 1,
            std::string_view(replacements_.c_str() + begin)};  // The last text is terminated: see create.
  }
  return best;
}

}  // namespace ganglion::tokenizer

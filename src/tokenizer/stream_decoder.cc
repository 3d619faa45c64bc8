#include "tokenizer/stream_decoder.h"

#include <utility>

#include "tokenizer/utf8.h"

namespace ganglion::tokenizer {

namespace {

// The start of a surrogate can no longer become a character, but only its third byte tells whether it is one;
// all three are then shown at once, as Python's incremental decoder does.
bool may_be_surrogate(std::string_view text) {
  return text.size() == 2 && static_cast<uint8_t>(text[0]) == 0xED && static_cast<uint8_t>(text[1]) >= 0xA0 &&
         static_cast<uint8_t>(text[1]) <= 0xBF;
}

}  // namespace

std::string StreamDecoder::push(int32_t id) {
  if (!special_ && tokenizer_.is_control(id)) return {};
  pending_ += tokenizer_.piece(id);
  size_t whole = 0;
  while (whole < pending_.size()) {
    const std::string_view rest = std::string_view(pending_).substr(whole);
    const Utf8Char c = utf8_first(rest);
    if (c.incomplete || may_be_surrogate(rest)) break;
    whole += c.length;
  }
  std::string shown;
  utf8_append_shown(std::string_view(pending_).substr(0, whole), &shown);
  pending_.erase(0, whole);
  return shown;
}

std::string StreamDecoder::finish() {
  std::string shown;
  utf8_append_shown(pending_, &shown);
  pending_.clear();
  return shown;
}

}  // namespace ganglion::tokenizer

// UTF-8 by the letter of the standard, and the byte alphabet of byte-level BPE. No allocation but where a
// string is returned. Used by every part of the tokenizer.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace ganglion::tokenizer {

inline constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  ///< U+FFFD.

/// The first character of a text, or the first run of bytes that is none.
struct Utf8Char {
  uint32_t length = 0;      ///< Bytes to step over: the character, or the longest broken prefix of one (1-3).
  bool valid = false;       ///< A whole character: no surrogate, no overlong form, at most U+10FFFF.
  bool incomplete = false;  ///< The text ends within what may still become a character.
};

/// Classifies the start of `text`, which must not be empty. Broken bytes are cut as Unicode recommends
/// ("maximal subparts", Unicode Standard 3.9), so that each stands for one U+FFFD.
Utf8Char utf8_first(std::string_view text);

bool utf8_valid(std::string_view text);

/// `text` with every broken byte replaced by `filler`: same length, always valid.
std::string utf8_fill_broken(std::string_view text, char filler);

/// Appends `text` to `out` with every broken run as U+FFFD.
void utf8_append_shown(std::string_view text, std::string* out);

/// Replaces U+2581, SentencePiece's visible space, by a space.
std::string unescape_spaces(std::string_view text);
bool has_escaped_space(std::string_view text);

/// Byte-level BPE writes each byte as one visible character (GPT-2's table). Turns such text back into bytes;
/// false where a character is not in the table.
[[nodiscard]] bool try_decode_byte_alphabet(std::string_view text, std::string* out);

/// The value of "<0xHH>", or -1.
int byte_token_value(std::string_view text);

}  // namespace ganglion::tokenizer

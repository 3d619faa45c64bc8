#include "tokenizer/utf8.h"

#include <array>

namespace ganglion::tokenizer {

namespace {

constexpr std::string_view kEscapedSpace = "\xE2\x96\x81";

uint8_t byte_at(std::string_view text, size_t index) {
  return static_cast<uint8_t>(text[index]);
}

// GPT-2 keeps the printable Latin-1 bytes and gives the rest, in order, the code points from 256 on.
constexpr bool is_printable_latin1(unsigned byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || (byte >= 0xAE && byte <= 0xFF);
}

constexpr unsigned kAlphabetEnd = 324;  // 256 + the 68 bytes that are not printable.

constexpr std::array<int16_t, kAlphabetEnd> make_alphabet() {
  std::array<int16_t, kAlphabetEnd> bytes{};
  for (auto& byte : bytes) byte = -1;
  unsigned next = 256;
  for (unsigned byte = 0; byte < 256; ++byte) {
    bytes[is_printable_latin1(byte) ? byte : next++] = static_cast<int16_t>(byte);
  }
  return bytes;
}

constexpr auto kAlphabet = make_alphabet();

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}

}  // namespace

Utf8Char utf8_first(std::string_view text) {
  const uint8_t lead = byte_at(text, 0);
  if (lead < 0x80) return {1, true, false};
  if (lead < 0xC2 || lead > 0xF4) return {1, false, false};
  const uint32_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  uint8_t low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  uint8_t high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  for (uint32_t i = 1; i < length; ++i) {
    if (i >= text.size()) return {i, false, true};
    if (byte_at(text, i) < low || byte_at(text, i) > high) return {i, false, false};
    low = 0x80;
    high = 0xBF;
  }
  return {length, true, false};
}

bool utf8_valid(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const Utf8Char c = utf8_first(text.substr(at));
    if (!c.valid) return false;
    at += c.length;
  }
  return true;
}

std::string utf8_fill_broken(std::string_view text, char filler) {
  std::string out(text);
  for (size_t at = 0; at < out.size();) {
    const Utf8Char c = utf8_first(text.substr(at));
    if (!c.valid) out.replace(at, c.length, c.length, filler);
    at += c.length;
  }
  return out;
}

void utf8_append_shown(std::string_view text, std::string* out) {
  for (size_t at = 0; at < text.size();) {
    const Utf8Char c = utf8_first(text.substr(at));
    out->append(c.valid ? text.substr(at, c.length) : kReplacement);
    at += c.length;
  }
}

bool has_escaped_space(std::string_view text) {
  return text.find(kEscapedSpace) != std::string_view::npos;
}

std::string unescape_spaces(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const size_t next = text.find(kEscapedSpace, at);
    if (next == std::string_view::npos) {
      out.append(text.substr(at));
      break;
    }
    out.append(text.substr(at, next - at));
    out.push_back(' ');
    at = next + kEscapedSpace.size();
  }
  return out;
}

bool try_decode_byte_alphabet(std::string_view text, std::string* out) {
  out->clear();
  for (size_t at = 0; at < text.size();) {
    const Utf8Char c = utf8_first(text.substr(at));
    if (!c.valid || c.length > 2) return false;
    unsigned code = byte_at(text, at);
    if (c.length == 2) code = (code & 0x1FU) << 6 | (byte_at(text, at + 1) & 0x3FU);
    if (code >= kAlphabetEnd || kAlphabet[code] < 0) return false;
    out->push_back(static_cast<char>(kAlphabet[code]));
    at += c.length;
  }
  return true;
}

int byte_token_value(std::string_view text) {
  if (text.size() != 6 || text.substr(0, 3) != "<0x" || text[5] != '>') return -1;
  const int high = hex_digit(text[3]);
  const int low = hex_digit(text[4]);
  return high < 0 || low < 0 ? -1 : high * 16 + low;
}

}  // namespace ganglion::tokenizer

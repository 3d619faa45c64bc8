// The tokens of a model in compact form: what each writes, what kind it is, and how to find one by its bytes.
// Filled by the loader, then read only. Knows no algorithm.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "tokenizer/string_index.h"

namespace ganglion::tokenizer {

/// Numbers are those of tokenizer.ggml.token_type.
enum class TokenType : uint8_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6,
};

/// Ids below `n_tokens` are the model's. Strings above are "hidden": intermediate results that merges name
/// without a token of their own; they are written as bytes and never leave the tokenizer.
class Vocabulary {
 public:
  Vocabulary() { byte_ids.fill(kNoId); }

  /// The bytes a token writes: GPT-2's byte alphabet and U+2581 are already undone, byte tokens are their
  /// byte.
  std::string_view piece(uint32_t id) const { return pieces[id]; }
  bool is_token(uint32_t id) const { return id < n_tokens; }
  TokenType type(uint32_t id) const { return static_cast<TokenType>(attributes[id] & kTypeMask); }
  bool has(uint32_t id, uint8_t attribute) const { return (attributes[id] & attribute) != 0; }
  void set_type(uint32_t id, TokenType type) {
    attributes[id] = static_cast<uint8_t>((attributes[id] & ~kTypeMask) | static_cast<uint8_t>(type));
  }
  void set(uint32_t id, uint8_t attribute, bool on) {
    const uint8_t old = attributes[id];
    attributes[id] = static_cast<uint8_t>(on ? old | attribute : old & ~attribute);
  }
  /// The token or hidden string that the text's algorithm may produce from these bytes, or kNoId.
  uint32_t find(std::string_view bytes) const { return index.find(pieces, bytes); }

  size_t memory_bytes() const {
    return pieces.memory_bytes() + index.memory_bytes() + attributes.capacity() +
           scores.capacity() * sizeof(float) + sizeof(*this);
  }

  static constexpr uint8_t kTypeMask = 7;
  static constexpr uint8_t kStripLeft = 8;    ///< Swallows the white space before it in a text.
  static constexpr uint8_t kStripRight = 16;  ///< Swallows the white space after it.
  static constexpr uint8_t kEndOfGeneration = 32;

  uint32_t n_tokens = 0;
  uint32_t longest_piece = 0;  ///< Bytes.
  StringPool pieces;
  StringIndex index;
  std::vector<uint8_t> attributes;  ///< [n_tokens]: type and flags.
  std::vector<float> scores;        ///< [n_tokens], or empty for kinds without scores.
  std::array<uint32_t, 256>
      byte_ids;  ///< What stands for one byte where nothing longer does; kNoId if nothing.
};

}  // namespace ganglion::tokenizer

// SentencePiece's precompiled normalisation: a map from character sequences to replacements, as a compact
// double array. It comes from the model file, so every step is bounds-checked.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace ganglion::tokenizer {

class Charsmap {
 public:
  struct Match {
    size_t consumed = 0;  ///< 0: nothing is replaced here.
    std::string_view replacement;
  };

  Charsmap() = default;
  /// `bytes`: a little-endian u32 size of the array, the array, then NUL-terminated replacements.
  /// Errors: kModelFile if the sizes contradict each other.
  static base::Result<Charsmap> create(std::span<const uint8_t> bytes);

  /// The longest sequence at the start of `text` that the map replaces.
  Match match(std::string_view text) const;

  size_t memory_bytes() const { return units_.capacity() * sizeof(uint32_t) + replacements_.capacity(); }

 private:
  uint32_t unit(uint32_t index) const { return index < units_.size() ? units_[index] : 0; }

  std::vector<uint32_t> units_;
  std::string replacements_;
};

}  // namespace ganglion::tokenizer

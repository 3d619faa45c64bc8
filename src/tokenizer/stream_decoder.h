// Turns ids into text as they are generated, never splitting a character over two pieces.
#pragma once

#include <cstdint>
#include <string>

#include "tokenizer/tokenizer.h"

namespace ganglion::tokenizer {

/// One generation. Not thread-safe; the tokenizer must outlive it.
/// Holds back at most three bytes, those of a character that is not whole yet.
class StreamDecoder {
 public:
  /// `special`: write control tokens by their names; otherwise they write nothing.
  explicit StreamDecoder(const Tokenizer& tokenizer, bool special = true)
      : tokenizer_(tokenizer), special_(special) {}

  /// The text that may be shown now: valid UTF-8, bytes that form no character as U+FFFD.
  std::string push(int32_t id);
  /// What is left at the end (an unfinished character as U+FFFD). The decoder is then as new.
  std::string finish();

 private:
  const Tokenizer& tokenizer_;
  bool special_;
  std::string pending_;
};

}  // namespace ganglion::tokenizer

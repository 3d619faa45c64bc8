// A model's text side: tokens and chat template. Needs no weights: a GGUF that holds only a vocabulary will
// do.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ganglion/error.h"
#include "ganglion/sampling.h"

namespace ganglion {

using Overrides = std::vector<std::pair<std::string, std::string>>;

/// Turns the bytes of tokens into text that may be shown: only whole characters, invalid bytes as U+FFFD.
class TextStream {
 public:
  virtual ~TextStream() = default;
  virtual std::string push(int32_t token) = 0;
  /// What is left at the end.
  virtual std::string finish() = 0;
};

/// Immutable; thread-safe.
class TextModel : public TokenBytes {
 public:
  /// Opens the header of a model (any form that Engine::open takes). `overrides` replace metadata keys.
  /// Errors: kModelFile, kUnsupported (tokenizer or pre-tokenizer not known), kInvalidArgument (an override).
  static Result<std::unique_ptr<TextModel>> open(const std::string& path, const Overrides& overrides = {});

  virtual Result<std::vector<int32_t>> encode(std::string_view text, bool add_special,
                                              bool parse_special) const = 0;
  /// `special`: write control tokens out. Ids outside the vocabulary write nothing.
  virtual std::string decode(std::span<const int32_t> tokens, bool special) const = 0;
  /// `special`: show control tokens.
  virtual std::unique_ptr<TextStream> new_stream(bool special) const = 0;

  virtual int32_t vocab_size() const = 0;
  virtual int32_t bos() const = 0;  ///< -1 if there is none.
  virtual int32_t eos() const = 0;
  /// The name of a control token, empty for -1.
  virtual std::string token_name(int32_t token) const = 0;
  virtual bool adds_bos() const = 0;
  virtual bool is_end_of_generation(int32_t token) const = 0;
  /// What is odd about the vocabulary but can be worked with, one line each.
  virtual std::vector<std::string> warnings() const = 0;

  /// The chat template in the file, empty if there is none.
  virtual const std::string& chat_template() const = 0;
};

/// Whether tokens stand for the same bytes, so that one model can draft for the other; up to 256 more in one
/// of them (padding) do no harm.
bool same_vocabulary(const TextModel& a, const TextModel& b);

}  // namespace ganglion

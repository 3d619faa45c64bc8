// Which tokens a model is calibrated on: pieces spread over a text, or random ones.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "ganglion/text.h"

namespace ganglion::calibration {

struct TokenSource {
  std::string model_path;
  Overrides overrides = {};
  std::string text_path = {};  ///< Empty: the text that is shipped.
  bool random = false;
  size_t tokens = 0;     ///< At most so many.
  uint32_t vocab = 0;    ///< Of random tokens.
  size_t piece = 256;    ///< Tokens that follow each other in the text.
  bool between = false;  ///< From between the pieces that are taken otherwise, where the text is long enough.
};

/// Pieces, spread evenly over the text in its order, so that few tokens see all of it.
/// Errors: those of reading and tokenizing; kInvalidArgument for a text without tokens.
base::Result<std::vector<int32_t>> choose_tokens(const TokenSource& source);

/// SHA-256 of tokens, as hex.
std::string token_fingerprint(const std::vector<int32_t>& tokens);

}  // namespace ganglion::calibration

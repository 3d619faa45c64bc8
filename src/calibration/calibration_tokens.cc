#include "calibration/calibration_tokens.h"

#include <algorithm>
#include <memory>

#include "base/sha256.h"
#include "base/units.h"
#include "calibration/calibration_text.h"
#include "platform/file.h"

namespace ganglion::calibration {

using base::Code;
using base::Result;
using base::Status;

namespace {

// Enough text for a piece of any language; what is left over is not tokenized.
constexpr size_t kBytesPerToken = 16;
constexpr uint64_t kMostText = 256 * base::kMiB;

std::vector<int32_t> random_tokens(size_t count, uint32_t vocab) {
  std::vector<int32_t> tokens;
  uint64_t random = 42;
  for (size_t i = 0; i < count; ++i) {
    random = random * 6364136223846793005U + 1442695040888963407U;
    tokens.push_back(static_cast<int32_t>((random >> 33) % vocab));
  }
  return tokens;
}

// The next place at or after `at` where a word begins, or at least a character.
size_t piece_start(std::string_view text, size_t at) {
  constexpr size_t kLongestWord = 64;
  if (at == 0 || at >= text.size()) return std::min(at, text.size());
  const size_t space = text.substr(at, kLongestWord).find_first_of(" \n");
  if (space != std::string_view::npos) return at + space;
  while (at < text.size() && (static_cast<unsigned char>(text[at]) & 0xC0U) == 0x80U) ++at;
  return at;
}

}  // namespace

Result<std::vector<int32_t>> choose_tokens(const TokenSource& source) {
  if (source.tokens == 0)
    return Status(Code::kInvalidArgument, "nothing to calibrate on - ask for --tokens 1 or more");
  if (source.random) return random_tokens(source.tokens, source.vocab);
  std::string own;
  if (!source.text_path.empty()) {
    GANGLION_ASSIGN_OR_RETURN(own, platform::read_text_file(source.text_path, kMostText));
  }
  const std::string_view text = source.text_path.empty() ? calibration_text() : std::string_view(own);
  GANGLION_ASSIGN_OR_RETURN(const std::unique_ptr<TextModel> model,
                            TextModel::open(source.model_path, source.overrides));
  std::vector<int32_t> tokens;
  const size_t pieces = base::ceil_div(source.tokens, source.piece);
  for (size_t i = 0; i < pieces; ++i) {
    const size_t apart = text.size() / pieces;
    const size_t begin = piece_start(text, apart * i + (source.between ? apart / 2 : 0));
    size_t end = i + 1 == pieces ? text.size() : piece_start(text, apart * (i + 1));
    end = std::min(end, piece_start(text, begin + source.piece * kBytesPerToken));
    if (begin >= end) continue;
    GANGLION_ASSIGN_OR_RETURN(const std::vector<int32_t> piece,
                              model->encode(text.substr(begin, end - begin), true, false));
    const size_t count = std::min({piece.size(), source.piece, source.tokens - tokens.size()});
    tokens.insert(tokens.end(), piece.begin(), piece.begin() + static_cast<ptrdiff_t>(count));
  }
  if (tokens.empty())
    return Status(Code::kInvalidArgument, "'" + source.text_path + "' has no text to calibrate on");
  return tokens;
}

std::string token_fingerprint(const std::vector<int32_t>& tokens) {
  base::Sha256 sha;
  sha.update({reinterpret_cast<const uint8_t*>(tokens.data()), tokens.size() * sizeof(int32_t)});
  return sha.finish();
}

}  // namespace ganglion::calibration

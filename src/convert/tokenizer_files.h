// tokenizer.json and what lies beside it, as the keys tokenizer.* of a GGUF file.
#pragma once

#include <string>

#include "base/status.h"
#include "format/gguf_writer.h"
#include "format/json.h"

namespace ganglion::convert {

struct TokenizerOptions {
  std::string directory;
  std::string pre_tokenizer;  ///< Empty: found from tokenizer.json.
  uint64_t vocab = 0;         ///< Rows of the embedding; missing tokens are filled up as unused.
};

/// Writes tokens, merges, special ids and chat templates. Byte-level BPE becomes the model "gpt2"; BPE over
/// U+2581 with byte tokens (converted SentencePiece) becomes "llama", with scores from the order of merges.
/// Errors: kModelFile for missing, damaged or contradictory files; kUnsupported for a kind of tokenizer, or a
/// pre-tokenizer, that is not known; kInvalidArgument for an unknown options.pre_tokenizer.
base::Status write_tokenizer(const TokenizerOptions& options, format::GgufWriter* writer);

/// GGUF's name of a byte-level pre-tokenizer (`pre_tokenizer` of tokenizer.json); empty if it is not known.
/// `ignore_merges`: that field of the BPE model, which GGUF's names imply.
std::string pre_tokenizer_name(const format::Json& pre_tokenizer, bool ignore_merges);

}  // namespace ganglion::convert

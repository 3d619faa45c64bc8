// What a Tokenizer holds; shared by the loader, which fills it, and the calls, which read it.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tokenizer/bpe.h"
#include "tokenizer/pre_tokenizer.h"
#include "tokenizer/prefix_index.h"
#include "tokenizer/special_tokens.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/unigram.h"
#include "tokenizer/vocabulary.h"

namespace ganglion::tokenizer {

enum class Kind { kBpe, kScoreMerge, kUnigram };

struct Tokenizer::Parts {
  Kind kind = Kind::kBpe;
  std::string kind_name;
  std::string pre_name = "default";
  Vocabulary vocabulary;
  SpecialIds ids;
  std::vector<int32_t> eog_ids;
  PrefixIndex specials;  ///< Control, unknown and user-defined tokens, which are looked for in texts first.
  bool add_bos = false;
  bool add_eos = false;
  bool add_space_prefix = false;
  BpeModel bpe;                               ///< kBpe.
  std::optional<PreTokenizer> pre_tokenizer;  ///< kBpe.
  UnigramModel unigram;                       ///< kUnigram.
  std::vector<std::string> warnings;
};

/// Fills the parts from the keys tokenizer.ggml.*. Errors: as Tokenizer::create.
base::Result<std::unique_ptr<Tokenizer::Parts>> load_parts(const base::Metadata& metadata);

}  // namespace ganglion::tokenizer

// Byte-pair encoding by ranked merges, within one word: over bytes (GPT-2 and most since) or over characters
// with a fallback to bytes (Gemma 4). n log n in the length of the word.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/metadata.h"
#include "tokenizer/string_index.h"
#include "tokenizer/vocabulary.h"

namespace ganglion::tokenizer {

struct BpeModel {
  MergeTable merges;
  bool raw_utf8 = false;       ///< Symbols start as characters, not bytes.
  bool ignore_merges = false;  ///< A word that is a token is that token.
};

/// Reads tokenizer.ggml.merges into `model` and adds the strings they name without being tokens to
/// `vocabulary`. Errors: kModelFile if the key is missing or a merge is not two strings with a space between.
base::Status load_merges(const base::Metadata& metadata, BpeModel* model, Vocabulary* vocabulary);

/// Buffers of one call, kept between words.
class BpeScratch {
 public:
  struct Symbol {
    uint32_t id;     ///< Token or hidden string, kNoId for a character that no merge and no token has.
    uint32_t begin;  ///< Offset in the word.
    int32_t previous;
    int32_t next;
  };
  std::vector<Symbol> symbols;
  std::vector<uint64_t>
      queue;  ///< Rank above, place of the left symbol below: least first is the order of merging.
};

/// Appends the ids of `word`. Bytes without a token are left out.
void bpe_encode_word(const BpeModel& model, const Vocabulary& vocabulary, std::string_view word,
                     BpeScratch* scratch, std::vector<int32_t>* ids);

}  // namespace ganglion::tokenizer

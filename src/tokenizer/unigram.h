// SentencePiece's unigram model ("t5" vocabularies): normalises a text and picks the segmentation with the
// highest sum of scores (Viterbi).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/charsmap.h"
#include "tokenizer/prefix_index.h"
#include "tokenizer/vocabulary.h"

namespace ganglion::tokenizer {

struct UnigramModel {
  PrefixIndex matcher;
  Charsmap charsmap;
  double unknown_score = 0;
  bool add_space_prefix = true;
  bool remove_extra_whitespaces = false;
  bool byte_fallback = false;  ///< All 256 byte tokens exist; they replace unknown characters.
};

/// Builds the matcher and the score of unknown characters from the vocabulary.
void prepare_unigram(const Vocabulary& vocabulary, UnigramModel* model);

/// Appends the ids of `text`.
/// Cost: time in the text's length times the longest match at each place; 16 bytes a byte of text.
void unigram_encode(const UnigramModel& model, const Vocabulary& vocabulary, std::string_view text,
                    int32_t unk, std::vector<int32_t>* ids);

}  // namespace ganglion::tokenizer

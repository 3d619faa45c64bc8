// SentencePiece's BPE ("llama" vocabularies): joins the two neighbours whose union is the token with the
// highest score, over the whole text. n log n in its length.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "tokenizer/vocabulary.h"

namespace ganglion::tokenizer {

/// Appends the ids of `text`, in which spaces are plain. Characters without a token become their bytes'
/// tokens, or `unk` where those are missing too (left out if negative).
void score_merge(const Vocabulary& vocabulary, std::string_view text, int32_t unk, std::vector<int32_t>* ids);

}  // namespace ganglion::tokenizer

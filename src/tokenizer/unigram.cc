#include "tokenizer/unigram.h"

#include <algorithm>
#include <limits>

#include "tokenizer/utf8.h"

namespace ganglion::tokenizer {

namespace {

// SentencePiece's penalty for a character that no token has, below the worst score.
constexpr double kUnknownPenalty = 10.0;
constexpr double kUnreached = -std::numeric_limits<double>::infinity();

// Applies the map and the rules for spaces. A space is plain in the result, whether it was U+2581 or not.
std::string normalize(const UnigramModel& model, std::string_view text) {
  std::string mapped;
  mapped.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const Charsmap::Match match = model.charsmap.match(text.substr(at));
    if (match.consumed > 0) {
      mapped.append(match.replacement);
      at += match.consumed;
      continue;
    }
    const Utf8Char c = utf8_first(text.substr(at));
    // Without byte tokens a broken byte can only be unknown; with them it stays.
    mapped.append(c.valid || model.byte_fallback ? text.substr(at, c.length) : kReplacement);
    at += c.length;
  }
  std::string out;
  out.reserve(mapped.size() + 1);
  bool in_word = false;
  bool has_prefix = false;
  for (char c : mapped) {
    if (c == ' ') {
      in_word = false;
      if (!model.remove_extra_whitespaces) out.push_back(' ');
      continue;
    }
    if (!in_word && ((model.add_space_prefix && !has_prefix) || model.remove_extra_whitespaces)) {
      out.push_back(' ');
      has_prefix = true;
    }
    in_word = true;
    out.push_back(c);
  }
  return has_escaped_space(out) ? unescape_spaces(out) : out;
}

struct Best {
  double score = kUnreached;
  uint32_t begin = 0;   ///< Of the token that ends here.
  uint32_t id = kNoId;  ///< kNoId: a character without a token.
};

void improve(double score, uint32_t begin, uint32_t id, Best* best) {
  if (score > best->score) *best = {score, begin, id};
}

// best[i]: the best segmentation of the first i bytes.
std::vector<Best> search(const UnigramModel& model, const Vocabulary& vocabulary, std::string_view text) {
  std::vector<Best> best(text.size() + 1);
  best[0].score = 0;
  for (size_t begin = 0; begin < text.size();) {
    const uint32_t length = utf8_first(text.substr(begin)).length;
    const double score = best[begin].score;
    bool has_character = false;
    PrefixIndex::Cursor cursor = model.matcher.start();
    for (size_t end = begin; end < text.size();) {
      if (!model.matcher.try_step(vocabulary.pieces, static_cast<uint8_t>(text[end]), &cursor)) break;
      ++end;
      const uint32_t id = model.matcher.whole(vocabulary.pieces, cursor);
      if (id == kNoId) continue;
      has_character = has_character || end == begin + length;
      // User-defined tokens win over all others, whose scores are logarithms of probabilities.
      const double token_score =
          vocabulary.type(id) == TokenType::kUserDefined ? 0.0 : static_cast<double>(vocabulary.scores[id]);
      improve(score + token_score, static_cast<uint32_t>(begin), id, &best[end]);
    }
    if (!has_character) {
      improve(score + model.unknown_score, static_cast<uint32_t>(begin), kNoId, &best[begin + length]);
    }
    begin += length;
  }
  return best;
}

}  // namespace

void prepare_unigram(const Vocabulary& vocabulary, UnigramModel* model) {
  std::vector<uint32_t> ids;
  double worst = 0;
  for (uint32_t id = 0; id < vocabulary.n_tokens; ++id) {
    const TokenType type = vocabulary.type(id);
    if (type == TokenType::kNormal) worst = std::min(worst, static_cast<double>(vocabulary.scores[id]));
    const bool matches =
        type == TokenType::kNormal || type == TokenType::kUserDefined || type == TokenType::kUnused;
    if (matches && !vocabulary.piece(id).empty()) ids.push_back(id);
  }
  model->matcher.build(vocabulary.pieces, std::move(ids));
  model->unknown_score = worst - kUnknownPenalty;
  model->byte_fallback = std::all_of(vocabulary.byte_ids.begin(), vocabulary.byte_ids.end(),
                                     [&](uint32_t id) { return vocabulary.is_token(id); });
}

void unigram_encode(const UnigramModel& model, const Vocabulary& vocabulary, std::string_view text,
                    int32_t unk, std::vector<int32_t>* ids) {
  const std::string normal = normalize(model, text);
  if (normal.empty()) return;
  const std::vector<Best> best = search(model, vocabulary, normal);
  const size_t first = ids->size();
  bool after_unknown = false;
  for (size_t end = normal.size(); end > 0; end = best[end].begin) {
    const bool unknown = best[end].id == kNoId;
    if (!unknown) {
      ids->push_back(static_cast<int32_t>(best[end].id));
    } else if (model.byte_fallback) {
      for (size_t at = end; at > best[end].begin; --at) {
        ids->push_back(static_cast<int32_t>(vocabulary.byte_ids[static_cast<uint8_t>(normal[at - 1])]));
      }
    } else if (!after_unknown && unk >= 0) {
      ids->push_back(unk);  // A run of unknown characters is one unknown token.
    }
    after_unknown = unknown;
  }
  std::reverse(ids->begin() + static_cast<std::ptrdiff_t>(first), ids->end());
}

}  // namespace ganglion::tokenizer

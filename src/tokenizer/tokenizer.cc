#include "tokenizer/tokenizer.h"

#include <algorithm>

#include "base/units.h"
#include "tokenizer/parts.h"
#include "tokenizer/score_merger.h"
#include "tokenizer/utf8.h"

namespace ganglion::tokenizer {

namespace {

using base::Code;
using base::Result;
using base::Status;
using Parts = Tokenizer::Parts;

// Offsets within a text are 32-bit, and SentencePiece's space prefix must still fit.
constexpr size_t kMaxTextBytes = size_t{1} << 30;
// Stands for a broken byte where the patterns look: neither letter, number, mark, punctuation, symbol nor
// space.
constexpr char kBrokenByte = '\x1A';

bool is_c_space(char c) {
  return c == ' ' || (c >= '\t' && c <= '\r');
}

/// One call of encode. Walks the text once, cutting it at special tokens.
class Encoder {
 public:
  Encoder(const Parts& parts, EncodeOptions options) : parts_(parts), options_(options) {}

  Result<std::vector<int32_t>> run(std::string_view text) {
    if (options_.add_special && parts_.add_bos) ids_.push_back(parts_.ids.bos);
    size_t begin = 0;
    for (size_t at = 0; at < text.size();) {
      const uint32_t id = special_at(text.substr(at));
      if (id == kNoId) {
        ++at;
        continue;
      }
      std::string_view before = text.substr(begin, at - begin);
      if (parts_.vocabulary.has(id, Vocabulary::kStripLeft)) {
        while (!before.empty() && is_c_space(before.back())) before.remove_suffix(1);
      }
      GANGLION_RETURN_IF_ERROR(encode_part(before));
      ids_.push_back(static_cast<int32_t>(id));
      after_special_ = true;
      at += parts_.vocabulary.piece(id).size();
      if (parts_.vocabulary.has(id, Vocabulary::kStripRight)) {
        while (at < text.size() && is_c_space(text[at])) ++at;
      }
      begin = at;
    }
    GANGLION_RETURN_IF_ERROR(encode_part(text.substr(begin)));
    if (options_.add_special && parts_.add_eos) ids_.push_back(parts_.ids.eos);
    return std::move(ids_);
  }

 private:
  // The longest special token that `text` starts with, or kNoId.
  uint32_t special_at(std::string_view text) const {
    if (!parts_.specials.starts_with(static_cast<uint8_t>(text[0]))) return kNoId;
    const Vocabulary& vocabulary = parts_.vocabulary;
    uint32_t longest = kNoId;
    PrefixIndex::Cursor cursor = parts_.specials.start();
    for (char c : text) {
      if (!parts_.specials.try_step(vocabulary.pieces, static_cast<uint8_t>(c), &cursor)) break;
      const uint32_t id = parts_.specials.whole(vocabulary.pieces, cursor);
      if (id == kNoId) continue;
      if (options_.parse_special || vocabulary.type(id) == TokenType::kUserDefined) longest = id;
    }
    return longest;
  }

  Status encode_part(std::string_view text) {
    if (text.empty()) return base::ok_status();
    const bool prefix = parts_.add_space_prefix && after_special_;
    after_special_ = false;
    switch (parts_.kind) {
      case Kind::kBpe:
        return encode_bpe(text);
      case Kind::kScoreMerge: {
        std::string spaced = prefix ? " " : "";
        spaced += has_escaped_space(text) ? unescape_spaces(text) : std::string(text);
        score_merge(parts_.vocabulary, spaced, parts_.ids.unk, &ids_);
        return base::ok_status();
      }
      case Kind::kUnigram:
        unigram_encode(parts_.unigram, parts_.vocabulary, text, parts_.ids.unk, &ids_);
        return base::ok_status();
    }
    return base::ok_status();
  }

  Status encode_bpe(std::string_view text) {
    std::string unescaped;
    if (parts_.bpe.raw_utf8 && has_escaped_space(text)) {
      unescaped = unescape_spaces(text);
      text = unescaped;
    }
    // Patterns see a valid stand-in of the same length; the words are taken from the text itself, so that
    // broken bytes survive.
    std::string expressible;
    if (utf8_valid(text)) {
      GANGLION_RETURN_IF_ERROR(parts_.pre_tokenizer->split(text, &word_ends_));
    } else {
      expressible = replace_inexpressible(text);
      text = expressible;
      GANGLION_RETURN_IF_ERROR(parts_.pre_tokenizer->split(utf8_fill_broken(text, kBrokenByte), &word_ends_));
    }
    size_t begin = 0;
    for (const size_t end : word_ends_) {
      bpe_encode_word(parts_.bpe, parts_.vocabulary, text.substr(begin, end - begin), &scratch_, &ids_);
      begin = end;
    }
    return base::ok_status();
  }

  // `text` with U+FFFD for the broken bytes that have no token: many vocabularies lack those that UTF-8 never
  // has.
  std::string replace_inexpressible(std::string_view text) const {
    std::string out;
    out.reserve(text.size());
    for (size_t at = 0; at < text.size();) {
      const Utf8Char c = utf8_first(text.substr(at));
      for (char byte : text.substr(at, c.length)) {
        const bool has_token =
            parts_.vocabulary.is_token(parts_.vocabulary.byte_ids[static_cast<uint8_t>(byte)]);
        out.append(c.valid || has_token ? std::string_view(&byte, 1) : kReplacement);
      }
      at += c.length;
    }
    return out;
  }

  const Parts& parts_;
  const EncodeOptions options_;
  std::vector<int32_t> ids_;
  bool after_special_ = true;  // The start of a text counts as one for the space prefix.
  std::vector<uint32_t> word_ends_;
  BpeScratch scratch_;
};

}  // namespace

Tokenizer::Tokenizer(std::unique_ptr<const Parts> parts) : parts_(std::move(parts)) {}
Tokenizer::~Tokenizer() = default;

Result<std::unique_ptr<Tokenizer>> Tokenizer::create(const base::Metadata& metadata) {
  GANGLION_ASSIGN_OR_RETURN(std::unique_ptr<const Parts> parts, load_parts(metadata));
  return std::make_unique<Tokenizer>(std::move(parts));
}

Result<std::vector<int32_t>> Tokenizer::encode(std::string_view text, EncodeOptions options) const {
  if (text.size() > kMaxTextBytes) {
    return Status(
        Code::kInvalidArgument,
        base::format("text of %zu bytes: at most %zu can be tokenized at once", text.size(), kMaxTextBytes));
  }
  return Encoder(*parts_, options).run(text);
}

std::string Tokenizer::decode(std::span<const int32_t> ids, DecodeOptions options) const {
  std::string text;
  bool strip = options.strip_leading_space && parts_->add_space_prefix;
  for (int32_t id : ids) {
    std::string_view bytes = piece(id);
    if (!options.special && is_control(id)) bytes = {};
    if (strip && !bytes.empty() && bytes.front() == ' ') bytes.remove_prefix(1);
    strip = false;
    text += bytes;
  }
  return text;
}

std::string_view Tokenizer::piece(int32_t id) const {
  return id >= 0 && id < n_tokens() ? parts_->vocabulary.piece(static_cast<uint32_t>(id))
                                    : std::string_view();
}

int32_t Tokenizer::n_tokens() const {
  return static_cast<int32_t>(parts_->vocabulary.n_tokens);
}

int32_t Tokenizer::find_special(std::string_view text) const {
  const std::vector<uint32_t>& sorted = parts_->specials.sorted_ids();
  const auto at = std::lower_bound(
      sorted.begin(), sorted.end(), text,
      [&](uint32_t id, std::string_view wanted) { return parts_->vocabulary.piece(id) < wanted; });
  return at != sorted.end() && parts_->vocabulary.piece(*at) == text ? static_cast<int32_t>(*at) : -1;
}

int32_t Tokenizer::bos() const {
  return parts_->ids.bos;
}
int32_t Tokenizer::eos() const {
  return parts_->ids.eos;
}
int32_t Tokenizer::eot() const {
  return parts_->ids.eot;
}
int32_t Tokenizer::eom() const {
  return parts_->ids.eom;
}
int32_t Tokenizer::unk() const {
  return parts_->ids.unk;
}
int32_t Tokenizer::pad() const {
  return parts_->ids.pad;
}
bool Tokenizer::add_bos() const {
  return parts_->add_bos;
}
bool Tokenizer::add_eos() const {
  return parts_->add_eos;
}
bool Tokenizer::add_space_prefix() const {
  return parts_->add_space_prefix;
}

bool Tokenizer::is_eog(int32_t id) const {
  return id >= 0 && id < n_tokens() &&
         parts_->vocabulary.has(static_cast<uint32_t>(id), Vocabulary::kEndOfGeneration);
}

bool Tokenizer::is_control(int32_t id) const {
  if (id < 0 || id >= n_tokens()) return false;
  const TokenType type = parts_->vocabulary.type(static_cast<uint32_t>(id));
  return type == TokenType::kControl || type == TokenType::kUnknown;
}

std::span<const int32_t> Tokenizer::eog_ids() const {
  return parts_->eog_ids;
}
std::string_view Tokenizer::kind_name() const {
  return parts_->kind_name;
}
std::string_view Tokenizer::pre_name() const {
  return parts_->pre_name;
}
std::span<const std::string> Tokenizer::warnings() const {
  return parts_->warnings;
}

size_t Tokenizer::memory_bytes() const {
  return sizeof(Parts) + parts_->vocabulary.memory_bytes() + parts_->specials.memory_bytes() +
         parts_->bpe.merges.memory_bytes() + parts_->unigram.matcher.memory_bytes() +
         parts_->unigram.charsmap.memory_bytes();
}

}  // namespace ganglion::tokenizer

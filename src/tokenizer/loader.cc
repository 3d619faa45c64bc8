// Reads tokenizer.ggml.* into a tokenizer's parts. The metadata comes from a file that nobody vouches for:
// every length and id is checked here, so that the rest may rely on them.
#include <algorithm>
#include <array>
#include <cmath>

#include "base/units.h"
#include "tokenizer/parts.h"
#include "tokenizer/utf8.h"

namespace ganglion::tokenizer {

namespace {

using base::Code;
using base::Metadata;
using base::Result;
using base::Status;
using Parts = Tokenizer::Parts;

constexpr char kTokensKey[] = "tokenizer.ggml.tokens";
constexpr char kTypesKey[] = "tokenizer.ggml.token_type";
constexpr char kScoresKey[] = "tokenizer.ggml.scores";
constexpr char kPreKey[] = "tokenizer.ggml.pre";
constexpr char kCharsmapKey[] = "tokenizer.ggml.precompiled_charsmap";
// The largest vocabulary in use has 262,144 tokens.
constexpr uint64_t kMaxTokens = uint64_t{1} << 24;
// Large enough never to matter among log-probabilities, small enough that sums stay finite.
constexpr double kScoreLimit = 1e30;

Status unsupported_model(const std::string& name) {
  return Status(
      Code::kUnsupported,
      base::format("tokenizer model '%s' (key 'tokenizer.ggml.model') is not supported - supported are "
                   "gpt2, llama, t5 and gemma4",
                   name.c_str()));
}

Status wrong_count(const char* key, uint64_t count, uint64_t n_tokens) {
  return Status(Code::kModelFile, base::format("metadata key '%s' has %llu entries for %llu tokens", key,
                                               static_cast<unsigned long long>(count),
                                               static_cast<unsigned long long>(n_tokens)));
}

// A token's text in a message: short, and without bytes that a terminal would act on.
std::string quoted(std::string_view text) {
  std::string shown;
  utf8_append_shown(text.substr(0, 40), &shown);
  for (char& c : shown) c = static_cast<uint8_t>(c) < 0x20 || c == 0x7F ? '?' : c;
  return "'" + shown + "'";
}

class Loader {
 public:
  explicit Loader(const Metadata& metadata) : metadata_(metadata), parts_(std::make_unique<Parts>()) {}

  Result<std::unique_ptr<Parts>> run() {
    GANGLION_RETURN_IF_ERROR(read_kind());
    GANGLION_RETURN_IF_ERROR(read_tokens());
    GANGLION_RETURN_IF_ERROR(read_types());
    GANGLION_RETURN_IF_ERROR(read_scores());
    GANGLION_RETURN_IF_ERROR(read_special_ids());
    GANGLION_RETURN_IF_ERROR(build_pieces());
    GANGLION_RETURN_IF_ERROR(build_specials());
    GANGLION_RETURN_IF_ERROR(read_model());
    parts_->vocabulary.pieces.shrink();
    return std::move(parts_);
  }

 private:
  Status read_kind();
  Status read_pre_tokenizer();
  Status read_tokens();
  Status read_types();
  Status read_scores();
  Status read_special_ids();
  Status build_pieces();
  Status add_piece(uint32_t id, std::string_view raw, std::string* buffer);
  Status build_specials();
  Status read_model();
  Status read_charsmap();
  bool spaces_are_escaped() const { return parts_->kind != Kind::kBpe || parts_->bpe.raw_utf8; }

  const Metadata& metadata_;
  std::unique_ptr<Parts> parts_;
  const base::Value* tokens_ = nullptr;
  /// Before names corrected them: Qwen's "</s>" ends a generation, but it is also the word its merges make.
  std::vector<uint8_t> types_in_file_;
};

Status Loader::read_kind() {
  GANGLION_ASSIGN_OR_RETURN(parts_->kind_name, metadata_.string_required("tokenizer.ggml.model"));
  const std::string& name = parts_->kind_name;
  if (name == "llama") {
    parts_->kind = Kind::kScoreMerge;
    parts_->ids = {.bos = 1, .eos = 2, .unk = 0};
    parts_->add_bos = true;
    parts_->add_space_prefix = true;
  } else if (name == "t5") {
    parts_->kind = Kind::kUnigram;
    parts_->ids = {.eos = 1, .unk = 2, .pad = 0};
    parts_->add_eos = true;
  } else if (name == "gpt2" || name == "gemma4") {
    parts_->kind = Kind::kBpe;
    GANGLION_RETURN_IF_ERROR(read_pre_tokenizer());
  } else {
    return unsupported_model(name);
  }
  GANGLION_ASSIGN_OR_RETURN(parts_->add_bos,
                            metadata_.bool_or("tokenizer.ggml.add_bos_token", parts_->add_bos));
  GANGLION_ASSIGN_OR_RETURN(parts_->add_eos,
                            metadata_.bool_or("tokenizer.ggml.add_eos_token", parts_->add_eos));
  // Gemma 4 breaks without its first token, and files exist that deny it.
  if (name == "gemma4") parts_->add_bos = true;
  if (parts_->kind == Kind::kBpe) return base::ok_status();
  GANGLION_ASSIGN_OR_RETURN(parts_->add_space_prefix,
                            metadata_.bool_or("tokenizer.ggml.add_space_prefix", parts_->add_space_prefix));
  return base::ok_status();
}

Status Loader::read_pre_tokenizer() {
  GANGLION_ASSIGN_OR_RETURN(std::string name, metadata_.string_or(kPreKey, ""));
  if (parts_->kind_name == "gemma4") {
    name = "gemma4";
  } else if (name.empty()) {
    name = "default";
    parts_->warnings.push_back(
        base::format("metadata key '%s' is missing: words are split by the pattern "
                     "'default', which may not be the one the model was trained with, and "
                     "answers may be worse - name it with --override %s=NAME",
                     kPreKey, kPreKey));
  }
  const PreTokenizerSpec* spec = find_pre_tokenizer(name);
  if (spec == nullptr) {
    return Status(
        Code::kUnsupported,
        base::format("pre-tokenizer %s (key '%s') is not known - pass --override %s=NAME with the one that "
                     "fits of: %s",
                     quoted(name).c_str(), kPreKey, kPreKey, pre_tokenizer_names().c_str()));
  }
  GANGLION_ASSIGN_OR_RETURN(parts_->pre_tokenizer, PreTokenizer::create(*spec));
  parts_->pre_name = name;
  parts_->add_bos = spec->adds_bos;
  parts_->bpe.raw_utf8 = spec->raw_utf8;
  parts_->bpe.ignore_merges = spec->ignore_merges;
  return base::ok_status();
}

Status Loader::read_tokens() {
  GANGLION_ASSIGN_OR_RETURN(tokens_, metadata_.string_array(kTokensKey));
  if (tokens_ == nullptr || tokens_->count == 0) {
    return Status(Code::kModelFile, base::format("metadata key '%s' is %s", kTokensKey,
                                                 tokens_ == nullptr ? "missing" : "empty"));
  }
  const base::Value* merges = metadata_.find("tokenizer.ggml.merges");
  const uint64_t bytes = tokens_->packed.size() + (merges == nullptr ? 0 : 2 * merges->packed.size());
  if (tokens_->count > kMaxTokens || bytes > UINT32_MAX) {
    return Status(Code::kModelFile,
                  base::format("metadata key '%s' has %llu tokens in %llu bytes, more than can be "
                               "read",
                               kTokensKey, static_cast<unsigned long long>(tokens_->count),
                               static_cast<unsigned long long>(bytes)));
  }
  parts_->vocabulary.n_tokens = static_cast<uint32_t>(tokens_->count);
  return base::ok_status();
}

Status Loader::read_types() {
  Vocabulary& vocabulary = parts_->vocabulary;
  vocabulary.attributes.assign(vocabulary.n_tokens, static_cast<uint8_t>(TokenType::kNormal));
  if (!metadata_.has(kTypesKey)) {
    if (!spaces_are_escaped()) return base::ok_status();
    // Old files: byte tokens show by their name alone.
    base::StringArrayReader reader(*tokens_);
    std::string_view text;
    for (uint32_t id = 0; reader.next(&text); ++id) {
      if (byte_token_value(text) >= 0) vocabulary.set_type(id, TokenType::kByte);
    }
    return base::ok_status();
  }
  GANGLION_ASSIGN_OR_RETURN(const std::vector<double> types, metadata_.numbers(kTypesKey));
  if (types.size() != vocabulary.n_tokens) return wrong_count(kTypesKey, types.size(), vocabulary.n_tokens);
  for (uint32_t id = 0; id < vocabulary.n_tokens; ++id) {
    const double type = types[id];
    if (!(type >= 0 && type <= static_cast<double>(TokenType::kByte)) || type != std::floor(type)) {
      return Status(Code::kModelFile, base::format("metadata key '%s': token %u has type %g, expected 1 to 6",
                                                   kTypesKey, id, type));
    }
    if (type != 0) vocabulary.set_type(id, static_cast<TokenType>(static_cast<uint8_t>(type)));
  }
  return base::ok_status();
}

Status Loader::read_scores() {
  if (parts_->kind == Kind::kBpe) return base::ok_status();
  Vocabulary& vocabulary = parts_->vocabulary;
  GANGLION_ASSIGN_OR_RETURN(const std::vector<double> scores, metadata_.numbers(kScoresKey));
  if (scores.size() != vocabulary.n_tokens) {
    if (!metadata_.has(kScoresKey)) {
      return Status(Code::kModelFile,
                    base::format("metadata key '%s' is missing, which a '%s' vocabulary needs", kScoresKey,
                                 parts_->kind_name.c_str()));
    }
    return wrong_count(kScoresKey, scores.size(), vocabulary.n_tokens);
  }
  vocabulary.scores.resize(vocabulary.n_tokens);
  for (uint32_t id = 0; id < vocabulary.n_tokens; ++id) {
    if (std::isnan(scores[id])) {
      return Status(Code::kModelFile,
                    base::format("metadata key '%s': token %u is not a number", kScoresKey, id));
    }
    vocabulary.scores[id] = static_cast<float>(std::clamp(scores[id], -kScoreLimit, kScoreLimit));
  }
  return base::ok_status();
}

Status Loader::read_special_ids() {
  types_in_file_ = parts_->vocabulary.attributes;
  SpecialTokenFinder finder;
  base::StringArrayReader reader(*tokens_);
  std::string_view text;
  for (uint32_t id = 0; reader.next(&text); ++id) finder.see(id, text);
  GANGLION_ASSIGN_OR_RETURN(parts_->eog_ids,
                            finder.resolve(metadata_, &parts_->vocabulary, &parts_->ids, &parts_->warnings));
  const SpecialIds& ids = parts_->ids;
  const std::array<std::pair<bool, const char*>, 2> missing = {{
      {parts_->add_bos && ids.bos < 0, "bos"},
      {parts_->add_eos && ids.eos < 0, "eos"},
  }};
  for (const auto& [is_missing, name] : missing) {
    if (!is_missing) continue;
    return Status(Code::kModelFile, base::format("texts are to get a %s token, but metadata key "
                                                 "'tokenizer.ggml.%s_token_id' names none - set it, or pass "
                                                 "--override tokenizer.ggml.add_%s_token=false",
                                                 name, name, name));
  }
  return base::ok_status();
}

Status Loader::build_pieces() {
  Vocabulary& vocabulary = parts_->vocabulary;
  vocabulary.pieces.reserve(vocabulary.n_tokens, tokens_->packed.size() - 8 * vocabulary.n_tokens);
  // Unigram texts are matched by prefix, not by hash.
  if (parts_->kind != Kind::kUnigram) {
    vocabulary.index.reserve(vocabulary.pieces, vocabulary.n_tokens, vocabulary.n_tokens);
  }
  base::StringArrayReader reader(*tokens_);
  std::string_view raw;
  std::string buffer;
  for (uint32_t id = 0; reader.next(&raw); ++id) GANGLION_RETURN_IF_ERROR(add_piece(id, raw, &buffer));
  return base::ok_status();
}

// Decides what a token writes, and whether the text's algorithm may produce it (control tokens never: they
// would let plain text steer the model).
Status Loader::add_piece(uint32_t id, std::string_view raw, std::string* buffer) {
  Vocabulary& vocabulary = parts_->vocabulary;
  const auto type = static_cast<TokenType>(types_in_file_[id]);
  std::string_view piece = raw;
  bool findable = !raw.empty() && type != TokenType::kControl && type != TokenType::kUnknown;
  if (const int byte = type == TokenType::kByte ? byte_token_value(raw) : -1; byte >= 0) {
    buffer->assign(1, static_cast<char>(byte));
    piece = *buffer;
    vocabulary.byte_ids[static_cast<size_t>(byte)] = id;
    findable = false;
  } else if (type == TokenType::kUserDefined) {
    // Written as it stands. A text reaches the merges with its bytes as they are, so only plain ASCII can
    // match.
    findable = findable && std::all_of(raw.begin(), raw.end(), [](char c) { return c > 0x20 && c < 0x7F; });
  } else if (findable && spaces_are_escaped()) {
    // A literal space cannot come up: in texts it stands for U+2581.
    findable = raw.find(' ') == std::string_view::npos;
    *buffer = unescape_spaces(raw);
    piece = *buffer;
  } else if (findable) {
    findable = try_decode_byte_alphabet(raw, buffer);
    if (findable) piece = *buffer;
  }
  vocabulary.pieces.add(piece);
  vocabulary.longest_piece = std::max(vocabulary.longest_piece, static_cast<uint32_t>(piece.size()));
  if (!findable || parts_->kind == Kind::kUnigram) return base::ok_status();
  const uint32_t first = vocabulary.index.insert(vocabulary.pieces, id);
  if (first == id) return base::ok_status();
  return Status(Code::kModelFile, base::format("metadata key '%s': tokens %u and %u are both %s", kTokensKey,
                                               first, id, quoted(raw).c_str()));
}

Status Loader::build_specials() {
  Vocabulary& vocabulary = parts_->vocabulary;
  std::vector<uint32_t> ids;
  for (uint32_t id = 0; id < vocabulary.n_tokens; ++id) {
    const TokenType type = vocabulary.type(id);
    const bool special =
        type == TokenType::kControl || type == TokenType::kUnknown || type == TokenType::kUserDefined;
    if (special && !vocabulary.piece(id).empty()) ids.push_back(id);
  }
  set_strip_attributes(metadata_, ids, &vocabulary);
  parts_->specials.build(vocabulary.pieces, std::move(ids));
  const std::vector<uint32_t>& sorted = parts_->specials.sorted_ids();
  for (size_t i = 1; i < sorted.size(); ++i) {
    if (vocabulary.piece(sorted[i - 1]) != vocabulary.piece(sorted[i])) continue;
    return Status(Code::kModelFile,
                  base::format("metadata key '%s': tokens %u and %u are both %s", kTokensKey, sorted[i - 1],
                               sorted[i], quoted(vocabulary.piece(sorted[i])).c_str()));
  }
  return base::ok_status();
}

Status Loader::read_model() {
  Vocabulary& vocabulary = parts_->vocabulary;
  switch (parts_->kind) {
    case Kind::kBpe: {
      GANGLION_RETURN_IF_ERROR(load_merges(metadata_, &parts_->bpe, &vocabulary));
      for (unsigned byte = 0; byte < 256; ++byte) {
        if (vocabulary.byte_ids[byte] != kNoId) continue;
        const char text[1] = {static_cast<char>(byte)};
        // Raw UTF-8 vocabularies write bytes as "<0xHH>"; these may be marked as normal tokens.
        vocabulary.byte_ids[byte] =
            vocabulary.find(parts_->bpe.raw_utf8 ? base::format("<0x%02X>", byte) : std::string(text, 1));
      }
      return base::ok_status();
    }
    case Kind::kScoreMerge:
      return base::ok_status();
    case Kind::kUnigram: {
      GANGLION_ASSIGN_OR_RETURN(parts_->unigram.remove_extra_whitespaces,
                                metadata_.bool_or("tokenizer.ggml.remove_extra_whitespaces", false));
      parts_->unigram.add_space_prefix = parts_->add_space_prefix;
      GANGLION_RETURN_IF_ERROR(read_charsmap());
      prepare_unigram(vocabulary, &parts_->unigram);
      return base::ok_status();
    }
  }
  return base::ok_status();
}

Status Loader::read_charsmap() {
  const base::Value* value = metadata_.find(kCharsmapKey);
  if (value == nullptr || (value->kind == base::ValueKind::kArray && value->count == 0))
    return base::ok_status();
  if (value->kind != base::ValueKind::kArray || value->element_bytes != 1 || value->packed.empty()) {
    return Status(Code::kModelFile, base::format("metadata key '%s' is not an array of bytes", kCharsmapKey));
  }
  GANGLION_ASSIGN_OR_RETURN(parts_->unigram.charsmap, Charsmap::create(value->packed));
  return base::ok_status();
}

}  // namespace

Result<std::unique_ptr<Parts>> load_parts(const Metadata& metadata) {
  return Loader(metadata).run();
}

}  // namespace ganglion::tokenizer

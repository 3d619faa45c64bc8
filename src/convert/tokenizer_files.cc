#include "convert/tokenizer_files.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <unordered_map>

#include "base/units.h"
#include "platform/file.h"
#include "tokenizer/pre_tokenizer.h"

namespace ganglion::convert {

using base::Code;
using base::Result;
using base::Status;
using format::GgufWriter;
using format::Json;

namespace {

constexpr uint64_t kMaxTokenizerBytes = 256 * base::kMiB;
constexpr uint64_t kMaxSmallBytes = 16 * base::kMiB;
constexpr uint64_t kMaxTokens = 1U << 24;
constexpr std::string_view kLowLine = "\xE2\x96\x81";  // U+2581: a space in SentencePiece's vocabularies.
constexpr std::string_view kByteSpace = "\xC4\xA0";    // U+0120: a space in the alphabet of bytes.

// Types of tokens as GGUF numbers them.
enum TokenType : int32_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6
};

bool is_byte_token(const std::string& text) {
  return text.size() == 6 && text.rfind("<0x", 0) == 0 && text[5] == '>';
}

class TokenizerWriter {
 public:
  TokenizerWriter(const TokenizerOptions& options, GgufWriter* writer) : options_(options), writer_(writer) {}

  Status run() {
    GANGLION_ASSIGN_OR_RETURN(tokenizer_, read("tokenizer.json", true));
    GANGLION_ASSIGN_OR_RETURN(config_, read("tokenizer_config.json", false));
    GANGLION_ASSIGN_OR_RETURN(special_, read("special_tokens_map.json", false));
    GANGLION_ASSIGN_OR_RETURN(generation_, read("generation_config.json", false));
    GANGLION_RETURN_IF_ERROR(read_tokens());
    GANGLION_RETURN_IF_ERROR(is_byte_level() ? write_byte_level() : write_sentence_pieces());
    writer_->add_strings("tokenizer.ggml.tokens", tokens_);
    writer_->add_ints("tokenizer.ggml.token_type", types_);
    GANGLION_RETURN_IF_ERROR(write_special_ids());
    return write_templates();
  }

 private:
  std::string path(const char* name) const { return options_.directory + "/" + name; }
  Result<Json> read(const char* name, bool required) const;
  Status wrong(const std::string& what) const {
    return Status(Code::kModelFile, "'" + path("tokenizer.json") + "': " + what);
  }
  Status unsupported(const std::string& what) const {
    return Status(Code::kUnsupported, "'" + path("tokenizer.json") + "': " + what);
  }

  Status read_tokens();
  Status place(const std::string& text, const Json& id, int32_t type, bool replaces);
  bool is_byte_level() const;
  Status write_byte_level();
  Status write_sentence_pieces();
  Result<std::vector<std::pair<std::string, std::string>>> merges() const;
  int64_t id_of(const Json& value) const;
  int64_t special_id(const char* name) const;
  bool template_adds(const Json& post_processor, int64_t id, bool first, bool* known) const;
  Status write_special_ids();
  void write_more_ends(int64_t eos);
  Status write_templates();

  const TokenizerOptions& options_;
  GgufWriter* writer_;
  Json tokenizer_, config_, special_, generation_;
  std::vector<std::string> tokens_;
  std::vector<int32_t> types_;
  std::unordered_map<std::string, int64_t> ids_;
};

Result<Json> TokenizerWriter::read(const char* name, bool required) const {
  Result<Json> json = Json::read_file(path(name), kMaxTokenizerBytes);
  if (json.ok() || json.status().code() != Code::kNotFound) return json;
  if (!required) return Json();
  const bool has_model = platform::read_text_file(path("tokenizer.model"), kMaxSmallBytes).ok();
  return Status(Code::kModelFile, "'" + path(name) + "' is missing" +
                                      (has_model ? " (tokenizer.model alone cannot be read)" : ""));
}

Status TokenizerWriter::place(const std::string& text, const Json& id, int32_t type, bool replaces) {
  uint64_t at = 0;
  if (!id.try_uint(kMaxTokens - 1, &at))
    return wrong("token '" + text.substr(0, 40) + "' has no sensible id");
  if (at >= options_.vocab) {
    return wrong(base::format("token '%s' has id %llu, but the embedding has %llu rows",
                              text.substr(0, 40).c_str(), static_cast<unsigned long long>(at),
                              static_cast<unsigned long long>(options_.vocab)));
  }
  if (types_[at] != kUnused && (!replaces || tokens_[at] != text)) {
    return wrong(base::format("tokens '%s' and '%s' both have id %llu", tokens_[at].substr(0, 40).c_str(),
                              text.substr(0, 40).c_str(), static_cast<unsigned long long>(at)));
  }
  tokens_[at] = text;
  types_[at] = type;
  ids_[text] = static_cast<int64_t>(at);
  return base::ok_status();
}

// The vocabulary by id; rows of the embedding without a token get a name and are unused.
Status TokenizerWriter::read_tokens() {
  const Json& model = tokenizer_["model"];
  if (model["type"].is_string() && model["type"].text() != "BPE") {
    return unsupported("a tokenizer of type '" + model["type"].text().substr(0, 40) +
                       "' cannot be converted - known: BPE");
  }
  const Json& vocab = model["vocab"];
  if (!vocab.is_object() || !model["merges"].is_array()) return wrong("there is no vocabulary with merges");
  for (uint64_t id = 0; id < options_.vocab; ++id) tokens_.push_back("[PAD" + std::to_string(id) + "]");
  types_.assign(options_.vocab, kUnused);
  for (size_t i = 0; i < vocab.keys().size(); ++i) {
    GANGLION_RETURN_IF_ERROR(place(vocab.keys()[i], vocab.items()[i], kNormal, false));
  }
  for (const Json& added : tokenizer_["added_tokens"].items()) {
    const int32_t type = added["special"].bool_or(false) ? kControl : kUserDefined;
    GANGLION_RETURN_IF_ERROR(place(added["content"].text(), added["id"], type, true));
  }
  return base::ok_status();
}

bool TokenizerWriter::is_byte_level() const {
  const Json& pre = tokenizer_["pre_tokenizer"];
  if (pre["type"].text() == "ByteLevel") return true;
  const std::vector<Json>& parts = pre["pretokenizers"].items();
  return std::any_of(parts.begin(), parts.end(),
                     [](const Json& part) { return part["type"].text() == "ByteLevel"; });
}

// Merges are strings "a b" in older files, pairs in newer ones.
Result<std::vector<std::pair<std::string, std::string>>> TokenizerWriter::merges() const {
  std::vector<std::pair<std::string, std::string>> pairs;
  for (const Json& merge : tokenizer_["model"]["merges"].items()) {
    const std::string& text = merge.text();
    const size_t space = text.find(' ');
    if (merge.items().size() == 2 && merge.items()[0].is_string() && merge.items()[1].is_string()) {
      pairs.emplace_back(merge.items()[0].text(), merge.items()[1].text());
    } else if (space != std::string::npos) {
      pairs.emplace_back(text.substr(0, space), text.substr(space + 1));
    } else {
      return wrong("merge " + std::to_string(pairs.size()) + " is no pair of tokens");
    }
  }
  return pairs;
}

Status TokenizerWriter::write_byte_level() {
  const Json& normalizer = tokenizer_["normalizer"];
  // NFC changes only texts that are not composed already; GGUF's tokenizers leave it out.
  const bool composes = normalizer["type"].text() == "NFC" || (normalizer["type"].text() == "Sequence" &&
                                                               normalizer["normalizers"].items().empty());
  if (!normalizer.is_null() && !composes) {
    return unsupported("normalizer '" + normalizer["type"].text().substr(0, 40) + "' is not known");
  }
  std::string pre = options_.pre_tokenizer;
  if (pre.empty()) {
    pre =
        pre_tokenizer_name(tokenizer_["pre_tokenizer"], tokenizer_["model"]["ignore_merges"].bool_or(false));
    if (pre.empty()) {
      return unsupported("its pre-tokenizer is not known - name the one that fits with --pre: " +
                         tokenizer::pre_tokenizer_names());
    }
  } else if (tokenizer::find_pre_tokenizer(pre) == nullptr) {
    return Status(Code::kInvalidArgument,
                  "pre-tokenizer '" + pre + "' is not known - known: " + tokenizer::pre_tokenizer_names());
  }
  writer_->add_string("tokenizer.ggml.model", "gpt2");
  writer_->add_string("tokenizer.ggml.pre", pre);
  GANGLION_ASSIGN_OR_RETURN(const auto pairs, merges());
  std::vector<std::string> texts;
  texts.reserve(pairs.size());
  for (const auto& [left, right] : pairs) {
    std::string text;
    for (const char c : left) text += c == ' ' ? std::string(kByteSpace) : std::string(1, c);
    text += ' ';
    for (const char c : right) text += c == ' ' ? std::string(kByteSpace) : std::string(1, c);
    texts.push_back(std::move(text));
  }
  writer_->add_strings("tokenizer.ggml.merges", texts);
  return base::ok_status();
}

// SentencePiece's BPE merges by the score of what comes out. The converted files keep the order of scores in
// their merges; a token that no merge makes is never merged into.
Status TokenizerWriter::write_sentence_pieces() {
  if (!tokenizer_["model"]["byte_fallback"].bool_or(false)) {
    return unsupported("neither byte-level BPE nor BPE with byte tokens");
  }
  for (size_t id = 0; id < tokens_.size(); ++id) {
    if (is_byte_token(tokens_[id])) types_[id] = kByte;
  }
  const std::string& unknown = tokenizer_["model"]["unk_token"].text();
  if (const auto at = ids_.find(unknown); at != ids_.end())
    types_[static_cast<size_t>(at->second)] = kUnknown;
  GANGLION_ASSIGN_OR_RETURN(const auto pairs, merges());
  std::vector<float> scores(tokens_.size(), 0);
  for (size_t id = 0; id < tokens_.size(); ++id) {
    scores[id] = -static_cast<float>(pairs.size() + id);
  }
  for (size_t i = pairs.size(); i-- > 0;) {  // The first merge that makes a token counts.
    const auto at = ids_.find(pairs[i].first + pairs[i].second);
    if (at == ids_.end()) {
      return wrong("merge " + std::to_string(i) + " makes a token that is not in the vocabulary");
    }
    scores[static_cast<size_t>(at->second)] = -static_cast<float>(i);
  }
  const Json& normalizer = tokenizer_["normalizer"];
  const Json& pre = tokenizer_["pre_tokenizer"];
  bool prefix = pre["type"].text() == "Metaspace" && pre["prepend_scheme"].text() != "never" &&
                pre["add_prefix_space"].bool_or(true);
  const std::vector<Json>& parts = normalizer["normalizers"].items();
  for (const Json& part : parts) prefix = prefix || part["prepend"].text() == kLowLine;
  prefix = prefix || normalizer["prepend"].text() == kLowLine;
  writer_->add_string("tokenizer.ggml.model", "llama");
  writer_->add_string("tokenizer.ggml.pre", "default");
  writer_->add_floats("tokenizer.ggml.scores", scores);
  writer_->add_bool("tokenizer.ggml.add_space_prefix", prefix);
  return base::ok_status();
}

// A token by its text, which stands alone or as "content"; -1 if there is none.
int64_t TokenizerWriter::id_of(const Json& value) const {
  const Json& text = value.is_object() ? value["content"] : value;
  if (!text.is_string()) return -1;
  const auto at = ids_.find(text.text());
  return at == ids_.end() ? -1 : at->second;
}

int64_t TokenizerWriter::special_id(const char* name) const {
  const std::vector<std::string>& keys = config_.keys();
  // A null in the newer file means that there is none.
  const bool said = std::find(keys.begin(), keys.end(), name) != keys.end();
  return id_of(said ? config_[name] : special_[name]);
}

// Whether texts get token `id` as their first (or last) one; *known where a template says so.
bool TokenizerWriter::template_adds(const Json& post_processor, int64_t id, bool first, bool* known) const {
  bool adds = false;
  if (post_processor["type"].text() == "Sequence") {
    for (const Json& part : post_processor["processors"].items()) {
      adds = template_adds(part, id, first, known) || adds;
    }
  } else if (post_processor["type"].text() == "TemplateProcessing") {
    const std::vector<Json>& single = post_processor["single"].items();
    *known = !single.empty();
    const Json kNone;
    const Json& token =
        single.empty() ? kNone : (first ? single.front() : single.back())["SpecialToken"]["id"];
    adds = id >= 0 && token.is_string() && id_of(token) == id;
  }
  return adds;
}

Status TokenizerWriter::write_special_ids() {
  const int64_t bos = special_id("bos_token");
  const int64_t eos = special_id("eos_token");
  const std::pair<const char*, int64_t> ids[] = {
      {"bos", bos}, {"eos", eos}, {"unknown", special_id("unk_token")}, {"padding", special_id("pad_token")}};
  for (const auto& [name, id] : ids) {
    if (id < 0) continue;
    writer_->add_uint(std::string("tokenizer.ggml.") + name + "_token_id", static_cast<uint32_t>(id));
  }
  const Json& post = tokenizer_["post_processor"];
  bool bos_known = false, eos_known = false;
  bool add_bos = template_adds(post, bos, true, &bos_known);
  bool add_eos = template_adds(post, eos, false, &eos_known) && eos != bos;
  if (!bos_known) add_bos = config_["add_bos_token"].bool_or(false) && bos >= 0;
  if (!eos_known) add_eos = config_["add_eos_token"].bool_or(false) && eos >= 0;
  writer_->add_bool("tokenizer.ggml.add_bos_token", add_bos);
  writer_->add_bool("tokenizer.ggml.add_eos_token", add_eos);
  write_more_ends(eos);
  return base::ok_status();
}

// generation_config.json may list more tokens that end a generation.
void TokenizerWriter::write_more_ends(int64_t eos) {
  const Json& ends = generation_["eos_token_id"];
  std::vector<const Json*> all;
  if (!ends.is_array()) all.push_back(&ends);
  for (const Json& end : ends.items()) all.push_back(&end);
  const char* keys[] = {"tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"};
  size_t next = 0;
  for (const Json* end : all) {
    uint64_t id = 0;
    if (!end->try_uint(options_.vocab - 1, &id) || static_cast<int64_t>(id) == eos) continue;
    if (next < std::size(keys)) writer_->add_uint(keys[next++], static_cast<uint32_t>(id));
  }
}

// A file of its own, or in tokenizer_config.json: one template, or several by name.
Status TokenizerWriter::write_templates() {
  const Result<std::string> file = platform::read_text_file(path("chat_template.jinja"), kMaxSmallBytes);
  if (file.ok()) {
    writer_->add_string("tokenizer.chat_template", file.value());
    return base::ok_status();
  }
  if (file.status().code() != Code::kNotFound) return file.status();
  GANGLION_ASSIGN_OR_RETURN(const Json older, read("chat_template.json", false));
  const Json& given = config_["chat_template"].is_null() ? older["chat_template"] : config_["chat_template"];
  if (given.is_string()) writer_->add_string("tokenizer.chat_template", given.text());
  std::set<std::string> seen;
  for (const Json& entry : given.items()) {
    const std::string& name = entry["name"].text();
    if (!entry["template"].is_string() || name.empty() || !seen.insert(name.substr(0, 64)).second) continue;
    writer_->add_string("tokenizer.chat_template" + (name == "default" ? "" : "." + name.substr(0, 64)),
                        entry["template"].text());
  }
  return base::ok_status();
}

}  // namespace

Status write_tokenizer(const TokenizerOptions& options, GgufWriter* writer) {
  return TokenizerWriter(options, writer).run();
}

}  // namespace ganglion::convert

#include "tokenizer/special_tokens.h"

#include <algorithm>
#include <initializer_list>

#include "base/units.h"

namespace ganglion::tokenizer {

namespace {

using base::Code;
using base::Result;
using base::Status;
using Names = std::span<const std::string_view>;

// Names by role, most telling first. Source: the lists in llama.cpp's vocabulary loader.
constexpr std::string_view kEndOfTurn[] = {
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>",         "<|endoftext|>",     "<|end_of_text|>",
    "<EOT>",      "_<EOT>",     "[EOT]",   "<｜end▁of▁sentence｜>", "<end_of_utterance>"};
constexpr std::string_view kEndOfMessage[] = {"<|eom_id|>"};
constexpr std::string_view kFillPrefix[] = {"<|fim_prefix|>",  "<fim-prefix>", "<fim_prefix>",
                                            "<｜fim▁begin｜>", "<PRE>",        "▁<PRE>",
                                            "<|code_prefix|>", "<|prefix|>"};
constexpr std::string_view kFillSuffix[] = {"<|fim_suffix|>",  "<fim-suffix>", "<fim_suffix>",
                                            "<｜fim▁hole｜>",  "<SUF>",        "▁<SUF>",
                                            "<|code_suffix|>", "<|suffix|>"};
constexpr std::string_view kFillMiddle[] = {"<|fim_middle|>",  "<fim-middle>", "<fim_middle>",
                                            "<｜fim▁end｜>",   "<MID>",        "▁<MID>",
                                            "<|code_middle|>", "<|middle|>"};
constexpr std::string_view kFillPad[] = {"<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"};
constexpr std::string_view kFillRepository[] = {"<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>",
                                                "<reponame>"};
constexpr std::string_view kFillSeparator[] = {"<|file_sep|>"};
constexpr std::string_view kEndOfGeneration[] = {"<|eot_id|>",
                                                 "<|im_end|>",
                                                 "<|end|>",
                                                 "<|return|>",
                                                 "<|call|>",
                                                 "<|flush|>",
                                                 "<|calls|>",
                                                 "<end_of_turn>",
                                                 "<|endoftext|>",
                                                 "</s>",
                                                 "<|eom_id|>",
                                                 "<EOT>",
                                                 "_<EOT>",
                                                 "[EOT]",
                                                 "[EOS]",
                                                 "<|end_of_text|>",
                                                 "<end_of_utterance>",
                                                 "<eos>",
                                                 "<turn|>",
                                                 "<|tool_response>",
                                                 "<｜end▁of▁sentence｜>",
                                                 "[e~["};
// gpt-oss writes its channels with these; as control tokens they would be hidden from the answer's parser.
constexpr std::string_view kAlwaysShown[] = {"<|channel|>", "<|message|>", "<|start|>", "<|constrain|>"};

std::vector<std::string_view> all_names() {
  std::vector<std::string_view> names;
  for (Names list : std::initializer_list<Names>{kEndOfTurn, kEndOfMessage, kFillPrefix, kFillSuffix,
                                                 kFillMiddle, kFillPad, kFillRepository, kFillSeparator,
                                                 kEndOfGeneration, kAlwaysShown}) {
    names.insert(names.end(), list.begin(), list.end());
  }
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

enum class OutOfRange { kFails, kWarns };

// The id at `key`, or `fallback` where the key is missing. A default that the vocabulary has not is dropped.
Result<int32_t> id_or(const base::Metadata& metadata, std::string_view key, int32_t fallback,
                      uint32_t n_tokens, OutOfRange out_of_range, std::vector<std::string>* warnings) {
  const base::Value* value = metadata.find(key);
  if (value == nullptr) {
    return fallback >= 0 && static_cast<uint32_t>(fallback) >= n_tokens ? int32_t{-1} : fallback;
  }
  const bool is_uint = value->kind == base::ValueKind::kUint;
  if (!is_uint && value->kind != base::ValueKind::kInt) {
    return metadata.uint_or(key, 0).status();
  }
  const int64_t id =
      is_uint ? static_cast<int64_t>(std::min<uint64_t>(value->uint_value, INT64_MAX)) : value->int_value;
  if (id >= 0 && id < n_tokens) return static_cast<int32_t>(id);
  if (id == -1 || id == 0xFFFFFFFF) return int32_t{-1};  // Converters write -1 for "none".
  const std::string message =
      base::format("metadata key '%.*s' is %lld, but the vocabulary has %u tokens",
                   static_cast<int>(key.size()), key.data(), static_cast<long long>(id), n_tokens);
  if (out_of_range == OutOfRange::kFails) return Status(Code::kModelFile, message);
  warnings->push_back(message + " - ignored");
  return int32_t{-1};
}

void remove_id(int32_t id, std::vector<int32_t>* ids) {
  ids->erase(std::remove(ids->begin(), ids->end(), id), ids->end());
}

bool contains(const std::vector<int32_t>& ids, uint32_t id) {
  return id != kNoId && std::find(ids.begin(), ids.end(), static_cast<int32_t>(id)) != ids.end();
}

const std::vector<std::string_view>& names_table() {
  // Views of literals; built once, read only.
  static const std::vector<std::string_view> names = all_names();
  return names;
}

}  // namespace

SpecialTokenFinder::SpecialTokenFinder() : found_(names_table().size(), kNoId) {}

void SpecialTokenFinder::see(uint32_t id, std::string_view raw_text) {
  if (raw_text.size() < 3 || raw_text.size() > 32) return;
  const auto& names = names_table();
  const auto at = std::lower_bound(names.begin(), names.end(), raw_text);
  if (at == names.end() || *at != raw_text) return;
  uint32_t& found = found_[static_cast<size_t>(at - names.begin())];
  if (found == kNoId) found = id;
}

uint32_t SpecialTokenFinder::id_of(std::string_view name) const {
  const auto& names = names_table();
  const auto at = std::lower_bound(names.begin(), names.end(), name);
  return at == names.end() || *at != name ? kNoId : found_[static_cast<size_t>(at - names.begin())];
}

int32_t SpecialTokenFinder::first_of(Names names, Vocabulary* vocabulary) const {
  for (std::string_view name : names) {
    const uint32_t id = id_of(name);
    if (id == kNoId) continue;
    vocabulary->set_type(id, TokenType::kControl);
    return static_cast<int32_t>(id);
  }
  return -1;
}

Result<std::vector<int32_t>> SpecialTokenFinder::resolve(const base::Metadata& metadata,
                                                         Vocabulary* vocabulary, SpecialIds* ids,
                                                         std::vector<std::string>* warnings) const {
  struct Row {
    std::string_view key;
    int32_t* id;
    OutOfRange out_of_range;
  };
  int32_t fill_prefix = -1, fill_suffix = -1, fill_middle = -1;
  int32_t fill_pad = -1, fill_repository = -1, fill_separator = -1;
  const Row rows[] = {
      {"tokenizer.ggml.bos_token_id", &ids->bos, OutOfRange::kFails},
      {"tokenizer.ggml.eos_token_id", &ids->eos, OutOfRange::kFails},
      {"tokenizer.ggml.eot_token_id", &ids->eot, OutOfRange::kFails},
      {"tokenizer.ggml.eom_token_id", &ids->eom, OutOfRange::kFails},
      {"tokenizer.ggml.unknown_token_id", &ids->unk, OutOfRange::kFails},
      {"tokenizer.ggml.padding_token_id", &ids->pad, OutOfRange::kWarns},
      {"tokenizer.ggml.fim_pre_token_id", &fill_prefix, OutOfRange::kWarns},
      {"tokenizer.ggml.fim_suf_token_id", &fill_suffix, OutOfRange::kWarns},
      {"tokenizer.ggml.fim_mid_token_id", &fill_middle, OutOfRange::kWarns},
      {"tokenizer.ggml.fim_pad_token_id", &fill_pad, OutOfRange::kWarns},
      {"tokenizer.ggml.fim_rep_token_id", &fill_repository, OutOfRange::kWarns},
      {"tokenizer.ggml.fim_sep_token_id", &fill_separator, OutOfRange::kWarns},
  };
  for (const Row& row : rows) {
    GANGLION_ASSIGN_OR_RETURN(
        *row.id, id_or(metadata, row.key, *row.id, vocabulary->n_tokens, row.out_of_range, warnings));
  }
  const std::pair<int32_t*, Names> by_name[] = {
      {&ids->eot, kEndOfTurn},
      {&ids->eom, kEndOfMessage},
      {&fill_prefix, kFillPrefix},
      {&fill_suffix, kFillSuffix},
      {&fill_middle, kFillMiddle},
      {&fill_pad, kFillPad},
      {&fill_repository, kFillRepository},
      {&fill_separator, kFillSeparator},
  };
  for (const auto& [id, names] : by_name) {
    if (*id < 0) *id = first_of(names, vocabulary);
  }
  return ends_of_generation({fill_pad, fill_repository, fill_separator, ids->eos, ids->eot, ids->eom},
                            vocabulary);
}

std::vector<int32_t> SpecialTokenFinder::ends_of_generation(std::vector<int32_t> ends,
                                                            Vocabulary* vocabulary) const {
  remove_id(-1, &ends);
  for (std::string_view name : kEndOfGeneration) {
    const uint32_t id = id_of(name);
    if (id == kNoId) continue;
    vocabulary->set_type(id, TokenType::kControl);
    ends.push_back(static_cast<int32_t>(id));
  }
  for (std::string_view name : kAlwaysShown) {
    if (const uint32_t id = id_of(name); id != kNoId) vocabulary->set_type(id, TokenType::kUserDefined);
  }
  // gpt-oss and solar-open end a part of a message with <|end|>, and the answer with another token.
  const bool has_call = contains(ends, id_of("<|call|>")) || contains(ends, id_of("<|calls|>"));
  const bool has_final = contains(ends, id_of("<|return|>")) || contains(ends, id_of("<|flush|>"));
  if (const uint32_t end = id_of("<|end|>"); has_call && has_final && contains(ends, end)) {
    remove_id(static_cast<int32_t>(end), &ends);
    vocabulary->set_type(end, TokenType::kUserDefined);
  }
  // Gemma 4 has a "</s>" that is the HTML tag.
  if (const uint32_t tag = id_of("</s>"); contains(ends, id_of("<|tool_response>")) && contains(ends, tag)) {
    remove_id(static_cast<int32_t>(tag), &ends);
    vocabulary->set_type(tag, TokenType::kNormal);
  }
  std::sort(ends.begin(), ends.end());
  ends.erase(std::unique(ends.begin(), ends.end()), ends.end());
  for (int32_t id : ends) vocabulary->set(static_cast<uint32_t>(id), Vocabulary::kEndOfGeneration, true);
  return ends;
}

namespace {

std::string lower_string(const base::Metadata& metadata, std::string_view key) {
  const Result<std::string> text = metadata.string_or(key, "");
  std::string lower = text.ok() ? text.value() : "";
  for (char& c : lower) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return lower;
}

bool contains_any(std::string_view text, std::initializer_list<std::string_view> parts) {
  return std::any_of(parts.begin(), parts.end(),
                     [&](std::string_view part) { return text.find(part) != std::string_view::npos; });
}

}  // namespace

void set_strip_attributes(const base::Metadata& metadata, const std::vector<uint32_t>& special_ids,
                          Vocabulary* vocabulary) {
  const std::string name = lower_string(metadata, "general.name");
  const std::string pre = lower_string(metadata, "tokenizer.ggml.pre");
  const std::string architecture = lower_string(metadata, "general.architecture");
  const bool mask_strips = contains_any(pre, {"jina-v2-de", "jina-v2-es", "jina-v2-code"}) ||
                           contains_any(architecture, {"nomic-bert-moe", "jina-bert-v3"});
  for (uint32_t id : special_ids) {
    const std::string_view piece = vocabulary->piece(id);
    if (mask_strips) {
      if (piece == "<mask>") vocabulary->set(id, Vocabulary::kStripLeft, true);
    } else if (contains_any(name, {"phi-3", "phi3"})) {
      const bool keeps = piece == "<unk>" || piece == "<s>" || piece == "<|endoftext|>";
      vocabulary->set(id, Vocabulary::kStripRight, !keeps);
    } else if (contains_any(name, {"modern-bert"}) && piece == "[MASK]") {
      vocabulary->set(id, Vocabulary::kStripLeft, true);
    }
  }
}

}  // namespace ganglion::tokenizer

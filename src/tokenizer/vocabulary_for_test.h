// For tests only: small vocabularies of every kind, as metadata made by hand.
#pragma once

#include <gtest/gtest.h>

#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/metadata.h"
#include "tokenizer/tokenizer.h"

namespace ganglion::tokenizer {

using base::Code;
using base::Metadata;
using base::Value;
using base::ValueKind;
using Ids = std::vector<int32_t>;
using Strings = std::vector<std::string>;

inline Value string_value(std::string text) {
  Value out;
  out.kind = ValueKind::kString;
  out.text = std::move(text);
  return out;
}

inline Value uint_value(uint64_t number) {
  Value out;
  out.uint_value = number;
  return out;
}

inline Value bool_value(bool on) {
  Value out;
  out.kind = ValueKind::kBool;
  out.bool_value = on;
  return out;
}

inline Value string_array(const Strings& items) {
  Value out;
  out.kind = ValueKind::kArray;
  out.element_kind = ValueKind::kString;
  out.count = items.size();
  for (const std::string& item : items) {
    const uint64_t size = item.size();
    const auto* begin = reinterpret_cast<const uint8_t*>(&size);
    out.packed.insert(out.packed.end(), begin, begin + sizeof(size));
    out.packed.insert(out.packed.end(), item.begin(), item.end());
  }
  return out;
}

template <typename T>
inline Value number_array(ValueKind kind, const std::vector<T>& items) {
  Value out;
  out.kind = ValueKind::kArray;
  out.element_kind = kind;
  out.element_bytes = sizeof(T);
  out.count = items.size();
  const auto* begin = reinterpret_cast<const uint8_t*>(items.data());
  out.packed.assign(begin, begin + items.size() * sizeof(T));
  return out;
}

// A vocabulary under construction.
struct Words {
  Strings tokens;
  std::vector<float> scores;
  std::vector<int32_t> types;
  Strings merges;

  int32_t add(const std::string& text, int32_t type = 1, float score = 0) {
    tokens.push_back(text);
    scores.push_back(score);
    types.push_back(type);
    return static_cast<int32_t>(tokens.size()) - 1;
  }
  // Adds a merge and its result.
  int32_t merge(const std::string& left, const std::string& right) {
    merges.push_back(left + " " + right);
    return add(left + right);
  }
  Metadata metadata(const std::string& model) const {
    Metadata out;
    out.set("tokenizer.ggml.model", string_value(model));
    out.set("tokenizer.ggml.tokens", string_array(tokens));
    out.set("tokenizer.ggml.token_type", number_array(ValueKind::kInt, types));
    if (model == "gpt2" || model == "gemma4") {
      out.set("tokenizer.ggml.merges", string_array(merges));
    } else {
      out.set("tokenizer.ggml.scores", number_array(ValueKind::kFloat, scores));
    }
    if (model == "gpt2") out.set("tokenizer.ggml.pre", string_value("gpt-2"));
    return out;
  }
};

inline std::string utf8_of(unsigned code) {
  if (code < 0x80) return std::string(1, static_cast<char>(code));
  return {static_cast<char>(0xC0 | code >> 6), static_cast<char>(0x80 | (code & 0x3F))};
}

// The 256 single-byte tokens of byte-level BPE, id = place in GPT-2's order.
inline Words byte_level_words() {
  Words words;
  unsigned next = 256;
  for (unsigned byte = 0; byte < 256; ++byte) {
    const bool shown = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
    words.add(utf8_of(shown ? byte : next++));
  }
  return words;
}

inline Words gpt2_words() {
  Words words = byte_level_words();
  words.merge("a", "a");
  words.merge("aa", "aa");
  words.merge("h", "e");
  words.merge("l", "l");
  words.merge("he", "ll");
  words.merge("\xC4\xA0", "he");  // A space as the byte alphabet writes it.
  words.add("<|im_end|>", 3);
  words.add("<user>", 4);
  return words;
}

inline Words llama_words() {
  Words words;
  words.add("<unk>", 2);
  words.add("<s>", 3);
  words.add("</s>", 3);
  for (int byte = 0; byte < 256; ++byte) {
    char text[8];
    std::snprintf(text, sizeof(text), "<0x%02X>", byte);
    words.add(text, 6);
  }
  words.add("\xE2\x96\x81", 1, -1);
  words.add("h", 1, -2);
  words.add("i", 1, -3);
  words.add("hi", 1, -0.5F);
  words.add("\xE2\x96\x81hi", 1, -0.25F);
  words.add("a", 1, -4);
  words.add("aa", 1, -5);
  words.add("aaaa", 1, -6);
  return words;
}

inline Words unigram_words() {
  Words words;
  words.add("<pad>", 3);
  words.add("</s>", 3);
  words.add("<unk>", 2);
  words.add("\xE2\x96\x81", 1, -3);
  words.add("\xE2\x96\x81he", 1, -4);
  words.add("llo", 1, -4);
  words.add("l", 1, -5);
  words.add("lo", 1, -4.5F);
  words.add("\xE2\x96\x81hel", 1, -6);
  words.add("a", 1, -2);
  words.add("aa", 1, -3);
  return words;
}

inline Metadata unigram_metadata() {
  Metadata metadata = unigram_words().metadata("t5");
  metadata.set("tokenizer.ggml.add_space_prefix", bool_value(true));
  return metadata;
}

inline Words gemma4_words() {
  Words words;
  words.add("<pad>", 3);
  words.add("<eos>", 3);
  words.add("<bos>", 3);
  for (int byte = 0; byte < 256; ++byte) {
    char text[8];
    std::snprintf(text, sizeof(text), "<0x%02X>", byte);
    words.add(text, 6);
  }
  words.add("a");
  words.add("b");
  words.add("\xE2\x96\x81");
  words.add("\n\n");
  words.merge("a", "b");
  words.merge("\xE2\x96\x81", "ab");
  words.merge("a", "a");
  return words;
}

inline Metadata gemma4_metadata() {
  Metadata metadata = gemma4_words().metadata("gemma4");
  metadata.set("tokenizer.ggml.bos_token_id", uint_value(2));
  metadata.set("tokenizer.ggml.eos_token_id", uint_value(1));
  return metadata;
}

inline std::unique_ptr<Tokenizer> made(const Metadata& metadata) {
  auto result = Tokenizer::create(metadata);
  EXPECT_TRUE(result.ok()) << result.status().message();
  return result.ok() ? result.take() : nullptr;
}

inline std::vector<std::unique_ptr<Tokenizer>> all_kinds() {
  std::vector<std::unique_ptr<Tokenizer>> out;
  out.push_back(made(gpt2_words().metadata("gpt2")));
  out.push_back(made(llama_words().metadata("llama")));
  out.push_back(made(unigram_metadata()));
  out.push_back(made(gemma4_metadata()));
  return out;
}

inline Ids encode(const Tokenizer& tokenizer, std::string_view text, EncodeOptions options = {}) {
  auto ids = tokenizer.encode(text, options);
  EXPECT_TRUE(ids.ok()) << ids.status().message();
  return ids.ok() ? ids.take() : Ids();
}

inline Strings pieces(const Tokenizer& tokenizer, std::string_view text, EncodeOptions options = {}) {
  Strings out;
  for (int32_t id : encode(tokenizer, text, options)) out.emplace_back(tokenizer.piece(id));
  return out;
}

inline std::string failure(const Metadata& metadata, Code code) {
  const auto result = Tokenizer::create(metadata);
  EXPECT_FALSE(result.ok());
  if (result.ok()) return "";
  EXPECT_EQ(base::code_name(result.status().code()), base::code_name(code)) << result.status().message();
  EXPECT_EQ(result.status().message().find('\n'), std::string::npos);
  return result.status().message();
}

inline bool mentions(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

}  // namespace ganglion::tokenizer

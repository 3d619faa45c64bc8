// The tokenizers of published models against two independent implementations. Their vocabularies are not ours
// to distribute: where the fixtures are missing, these tests say so and are skipped.
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tokenizer/gguf_vocabulary_for_test.h"
#include "tokenizer/stream_decoder.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/utf8.h"

namespace ganglion::tokenizer {
namespace {

using nlohmann::json;

const std::string kFolder = std::string(GANGLION_SHARED_FIXTURES) + "/tokenizers/";

bool exists(const std::string& path) {
  return std::ifstream(path).good();
}

json read_json(const std::string& path) {
  std::ifstream file(path);
  return json::parse(file, nullptr, false);
}

std::string from_hex(const std::string& hex) {
  std::string out;
  for (size_t i = 0; i + 1 < hex.size(); i += 2) {
    out.push_back(static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  }
  return out;
}

std::string shown(const std::string& bytes) {
  std::string out;
  utf8_append_shown(bytes, &out);
  return out;
}

std::unique_ptr<Tokenizer> load(const std::string& path) {
  const base::Metadata metadata = read_gguf_metadata_for_test(path);
  auto made = Tokenizer::create(metadata);
  EXPECT_TRUE(made.ok()) << made.status().message();
  return made.ok() ? made.take() : nullptr;
}

std::vector<int32_t> encode(const Tokenizer& tokenizer, const std::string& text, const json& options) {
  auto ids =
      tokenizer.encode(text, {options.value("add_special", false), options.value("parse_special", false)});
  EXPECT_TRUE(ids.ok()) << ids.status().message();
  return ids.ok() ? ids.take() : std::vector<int32_t>();
}

void check_decoding(const Tokenizer& tokenizer, const json& item, const std::vector<int32_t>& ids) {
  const std::string name = item["name"];
  const std::string detok = item["detok"];
  EXPECT_EQ(tokenizer.decode(ids), item.contains("detok_hex") ? from_hex(item["detok_hex"]) : detok) << name;
  if (item.contains("detok_without_special")) {
    const std::string without = item["detok_without_special"];
    EXPECT_EQ(tokenizer.decode(ids, {.special = false}), without) << name;
  }
  StreamDecoder stream(tokenizer);
  for (size_t i = 0; i < ids.size(); ++i) {
    const std::string shown = stream.push(ids[i]);
    if (item.contains("pieces_hex")) {
      EXPECT_EQ(tokenizer.piece(ids[i]), from_hex(item["pieces_hex"][i])) << name;
      EXPECT_EQ(shown, item["stream"][i].get<std::string>()) << name << " at " << i;
    }
  }
  EXPECT_EQ(stream.finish(), item.value("stream_tail", "")) << name;
}

class Fixture : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (!exists(kFolder + GetParam() + ".gguf")) {
      std::fprintf(stderr, "\n*** SKIPPED: no tokenizer fixture '%s' in %s ***\n\n", GetParam(),
                   kFolder.c_str());
      GTEST_SKIP() << "tokenizer fixture '" << GetParam() << "' is not here";
    }
  }
};

TEST_P(Fixture, EncodesAndDecodesAsTheReferences) {
  const json head = read_json(kFolder + GetParam() + ".json");
  const auto tokenizer = load(kFolder + GetParam() + ".gguf");
  ASSERT_NE(tokenizer, nullptr);
  EXPECT_EQ(tokenizer->kind_name(), head["tokenizer_model"].get<std::string>());
  EXPECT_EQ(tokenizer->n_tokens(), head["n_tokens"].get<int>());
  EXPECT_EQ(tokenizer->add_bos(), head["add_bos"].get<bool>());
  EXPECT_EQ(tokenizer->add_eos(), head["add_eos"].get<bool>());
  EXPECT_EQ(tokenizer->add_space_prefix(), head["add_space_prefix"].get<bool>());
  EXPECT_EQ(tokenizer->bos(), head["bos_id"].get<int>());
  EXPECT_EQ(tokenizer->eos(), head["eos_id"].get<int>());
  const auto ends = tokenizer->eog_ids();
  EXPECT_EQ(std::vector<int32_t>(ends.begin(), ends.end()), head["eog_ids"].get<std::vector<int32_t>>());
  EXPECT_TRUE(tokenizer->warnings().empty());
  for (const json& item : head["cases"]) {
    const auto wanted = item["ids"].get<std::vector<int32_t>>();
    EXPECT_EQ(encode(*tokenizer, item["text"], item), wanted) << item["name"];
    check_decoding(*tokenizer, item, wanted);
  }
}

TEST_P(Fixture, KeepsOrReplacesBrokenBytes) {
  const json head = read_json(kFolder + GetParam() + ".json");
  const auto tokenizer = load(kFolder + GetParam() + ".gguf");
  ASSERT_NE(tokenizer, nullptr);
  for (const json& item : head["invalid_utf8"]) {
    const std::string text = from_hex(item["hex"]);
    const auto ids = encode(*tokenizer, text, item);
    // The same bytes, or U+FFFD where the vocabulary has no token for one.
    EXPECT_EQ(shown(tokenizer->decode(ids)), shown(text)) << item["name"];
    if (item["ids"].is_null()) continue;
    const auto wanted = item["ids"].get<std::vector<int32_t>>();
    // llama.cpp lets the lead byte 0xFE swallow the three letters after it; they keep their own tokens here.
    const bool swallows = tokenizer->kind_name() == "llama" && item["name"] == "invalid-utf16";
    if (!item["lossy"].get<bool>() && !swallows) {
      EXPECT_EQ(ids, wanted) << item["name"];
    }
    check_decoding(*tokenizer, item, wanted);
  }
}

INSTANTIATE_TEST_SUITE_P(Vocabularies, Fixture,
                         testing::Values("smollm2", "gpt-2", "llama-bpe", "qwen2", "llama-spm", "phi-3",
                                         "gemma3", "gemma4-small"),
                         [](const auto& info) {
                           std::string name = info.param;
                           for (char& c : name) c = c == '-' ? '_' : c;
                           return name;
                         });

TEST(PreTokenizerFixture, SplitsAsTheReferences) {
  if (!exists(kFolder + "pre_tokenizers.json")) {
    std::fprintf(stderr, "\n*** SKIPPED: no pre-tokenizer fixtures in %s ***\n\n", kFolder.c_str());
    GTEST_SKIP() << "pre-tokenizer fixtures are not here";
  }
  const json file = read_json(kFolder + "pre_tokenizers.json");
  for (const json& group : file["groups"]) {
    const std::string pre = group["pre"];
    base::Metadata metadata = read_gguf_metadata_for_test(kFolder + "gpt-2.gguf");
    ASSERT_TRUE(metadata.set_override("tokenizer.ggml.pre", pre).ok());
    auto made = Tokenizer::create(metadata);
    ASSERT_TRUE(made.ok()) << pre << ": " << made.status().message();
    for (const json& item : group["cases"]) {
      EXPECT_EQ(encode(*made.value(), item["text"], item), item["ids"].get<std::vector<int32_t>>())
          << pre << ": " << item["name"];
    }
  }
}

TEST(OwnVocabularyFixture, EncodesAsRecorded) {
  for (const std::string folder : {GANGLION_FIXTURES "/models/", GANGLION_SHARED_FIXTURES "/models/"}) {
    if (!exists(folder + "tokenizer_cases.json")) continue;
    const json file = read_json(folder + "tokenizer_cases.json");
    std::string model;
    for (const char* name : {"llama-q4_0.gguf", "llama-f32.gguf", "llama-relu-f32.gguf"}) {
      if (model.empty() && exists(folder + name)) model = folder + name;
    }
    if (model.empty()) continue;
    const auto tokenizer = load(model);
    ASSERT_NE(tokenizer, nullptr);
    EXPECT_EQ(tokenizer->pre_name(), file["pre"].get<std::string>());
    EXPECT_EQ(tokenizer->n_tokens(), file["n_vocab"].get<int>());
    for (const json& item : file["cases"]) {
      auto ids = tokenizer->encode(item["text"].get<std::string>(), {.parse_special = true});
      ASSERT_TRUE(ids.ok());
      EXPECT_EQ(ids.value(), item["ids"].get<std::vector<int32_t>>()) << item["text"];
      EXPECT_EQ(tokenizer->decode(ids.value()), item["text"].get<std::string>());
    }
    return;
  }
  std::fprintf(stderr, "\n*** SKIPPED: no tokenizer_cases.json with a model beside it ***\n\n");
  GTEST_SKIP() << "tokenizer_cases.json is not here";
}

}  // namespace
}  // namespace ganglion::tokenizer

// What the tokenizer says about damaged, odd and unsupported metadata.
#include <gtest/gtest.h>

#include <limits>

#include "tokenizer/tokenizer.h"
#include "tokenizer/vocabulary_for_test.h"

namespace ganglion::tokenizer {
namespace {

TEST(Damage, OfTokensTypesAndScoresIsNamed) {
  Metadata metadata = gpt2_words().metadata("gpt2");
  metadata.set("tokenizer.ggml.token_type", number_array(ValueKind::kInt, std::vector<int32_t>{1, 1}));
  EXPECT_TRUE(mentions(failure(metadata, Code::kModelFile), "tokenizer.ggml.token_type"));

  Words words = gpt2_words();
  words.types[5] = 99;
  EXPECT_TRUE(mentions(failure(words.metadata("gpt2"), Code::kModelFile), "token 5 has type 99"));
  words = gpt2_words();
  words.add("a");
  EXPECT_TRUE(mentions(failure(words.metadata("gpt2"), Code::kModelFile), "are both 'a'"));
  words = gpt2_words();
  words.add("<user>", 3);
  EXPECT_TRUE(mentions(failure(words.metadata("gpt2"), Code::kModelFile), "are both '<user>'"));

  metadata = llama_words().metadata("llama");
  metadata.set("tokenizer.ggml.scores", number_array(ValueKind::kFloat, std::vector<float>{1, 2}));
  EXPECT_TRUE(mentions(failure(metadata, Code::kModelFile), "tokenizer.ggml.scores"));
  words = llama_words();
  words.scores[3] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(mentions(failure(words.metadata("llama"), Code::kModelFile), "not a number"));

  Metadata empty;
  EXPECT_TRUE(mentions(failure(empty, Code::kModelFile), "tokenizer.ggml.model"));
  empty.set("tokenizer.ggml.model", string_value("llama"));
  EXPECT_TRUE(mentions(failure(empty, Code::kModelFile), "tokenizer.ggml.tokens"));
  empty.set("tokenizer.ggml.tokens", uint_value(3));
  EXPECT_TRUE(mentions(failure(empty, Code::kModelFile), "tokenizer.ggml.tokens"));
  empty.set("tokenizer.ggml.tokens", string_array({}));
  EXPECT_TRUE(mentions(failure(empty, Code::kModelFile), "empty"));
}

TEST(Damage, OfIdsIsNamed) {
  for (const char* name : {"bos", "eos", "eot", "eom", "unknown"}) {
    Metadata metadata = gpt2_words().metadata("gpt2");
    const std::string key = std::string("tokenizer.ggml.") + name + "_token_id";
    metadata.set(key, uint_value(1 << 20));
    EXPECT_TRUE(mentions(failure(metadata, Code::kModelFile), key));
    metadata.set(key, string_value("x"));
    EXPECT_TRUE(mentions(failure(metadata, Code::kModelFile), key));
  }
  Metadata metadata = gpt2_words().metadata("gpt2");
  metadata.set("tokenizer.ggml.padding_token_id", uint_value(1 << 20));
  const auto tokenizer = made(metadata);
  EXPECT_EQ(tokenizer->pad(), -1);
  ASSERT_EQ(tokenizer->warnings().size(), 1U);
  EXPECT_TRUE(mentions(tokenizer->warnings()[0], "padding_token_id"));
  metadata.set("tokenizer.ggml.add_bos_token", bool_value(true));
  EXPECT_TRUE(mentions(failure(metadata, Code::kModelFile), "tokenizer.ggml.bos_token_id"));
}

TEST(Damage, OfMergesIsNamed) {
  for (const char* merge : {"", " ", "ab", "a ", " a", "  "}) {
    Words words = gpt2_words();
    words.merges.push_back(merge);
    EXPECT_TRUE(mentions(failure(words.metadata("gpt2"), Code::kModelFile), "tokenizer.ggml.merges"))
        << merge;
  }
  Words words = gpt2_words();
  words.merges.insert(words.merges.end(), {"a a", "\xFF \xFE", "\xE4\xB8\xAD x", "q q", "qq qq", "a b c"});
  EXPECT_NE(made(words.metadata("gpt2")), nullptr);
  Metadata metadata = gpt2_words().metadata("gpt2");
  metadata.set("tokenizer.ggml.merges", uint_value(1));
  EXPECT_TRUE(mentions(failure(metadata, Code::kModelFile), "tokenizer.ggml.merges"));
}

TEST(Damage, OfThePrecompiledMapIsNamed) {
  for (const std::vector<uint8_t>& bytes :
       {std::vector<uint8_t>{1}, {255, 255, 255, 255, 0}, {4, 0, 0, 0, 0, 0, 0, 0}, {0, 0, 0, 0, 'a'}}) {
    Metadata metadata = unigram_metadata();
    metadata.set("tokenizer.ggml.precompiled_charsmap", number_array(ValueKind::kUint, bytes));
    EXPECT_TRUE(mentions(failure(metadata, Code::kModelFile), "precompiled_charsmap"));
  }
}

TEST(Refusals, NameWhatWasFoundAndWhatIsSupported) {
  for (const char* name : {"bert", "rwkv", "plamo2", "none", "no_vocab", ""}) {
    Metadata metadata = gpt2_words().metadata(name);
    const std::string message = failure(metadata, Code::kUnsupported);
    EXPECT_TRUE(mentions(message, std::string("'") + name + "'"));
    EXPECT_TRUE(mentions(message, "gpt2, llama, t5 and gemma4"));
  }
  Metadata metadata = gpt2_words().metadata("gpt2");
  metadata.set("tokenizer.ggml.pre", string_value("new-\x1B[31m"));
  const std::string message = failure(metadata, Code::kUnsupported);
  EXPECT_TRUE(mentions(message, "new-?[31m"));
  EXPECT_TRUE(mentions(message, "smaug-bpe"));
  EXPECT_TRUE(mentions(message, "--override tokenizer.ggml.pre=NAME"));
}

TEST(Warnings, SayThatThePreTokenizerIsMissing) {
  const Words words = gpt2_words();
  Metadata metadata;
  metadata.set("tokenizer.ggml.model", string_value("gpt2"));
  metadata.set("tokenizer.ggml.tokens", string_array(words.tokens));
  metadata.set("tokenizer.ggml.merges", string_array(words.merges));
  const auto tokenizer = made(metadata);
  EXPECT_EQ(tokenizer->pre_name(), "default");
  ASSERT_EQ(tokenizer->warnings().size(), 1U);
  EXPECT_TRUE(mentions(tokenizer->warnings()[0], "tokenizer.ggml.pre"));
}

}  // namespace
}  // namespace ganglion::tokenizer

// The tokenizer on vocabularies made by hand: every kind, hostile and very long texts, streaming.
#include "tokenizer/tokenizer.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

#include "tokenizer/pre_tokenizer.h"
#include "tokenizer/stream_decoder.h"
#include "tokenizer/utf8.h"
#include "tokenizer/vocabulary_for_test.h"

namespace ganglion::tokenizer {
namespace {

TEST(ByteLevelBpe, MergesByRankWithinWords) {
  const auto tokenizer = made(gpt2_words().metadata("gpt2"));
  EXPECT_EQ(pieces(*tokenizer, "hello hello"), (Strings{"hell", "o", " ", "hell", "o"}));
  EXPECT_EQ(pieces(*tokenizer, "aaaaaaa"), (Strings{"aaaa", "aa", "a"}));
  EXPECT_EQ(tokenizer->kind_name(), "gpt2");
  EXPECT_EQ(tokenizer->pre_name(), "gpt-2");
  EXPECT_TRUE(encode(*tokenizer, "").empty());
}

TEST(ByteLevelBpe, FindsWholeWordsFirstWhereThePreTokenizerSaysSo) {
  Words words = gpt2_words();
  const int32_t whole = words.add("xyz");
  Metadata metadata = words.metadata("gpt2");
  EXPECT_EQ(encode(*made(metadata), "xyz").size(), 3U);
  metadata.set("tokenizer.ggml.pre", string_value("llama-bpe"));
  metadata.set("tokenizer.ggml.bos_token_id", uint_value(0));
  const auto tokenizer = made(metadata);
  EXPECT_EQ(encode(*tokenizer, "xyz"), Ids{whole});
  EXPECT_TRUE(tokenizer->add_bos());
}

TEST(ByteLevelBpe, MergesThroughStringsThatAreNoTokens) {
  Words words = byte_level_words();
  words.merges = {"x y", "xy z", "p q"};
  const int32_t xyz = words.add("xyz");
  const auto tokenizer = made(words.metadata("gpt2"));
  EXPECT_EQ(encode(*tokenizer, "xyz"), Ids{xyz});
  EXPECT_EQ(pieces(*tokenizer, "pq"), (Strings{"p", "q"}));
  for (int32_t id : encode(*tokenizer, "xy xyz pq")) EXPECT_LT(id, tokenizer->n_tokens());
}

TEST(ByteLevelBpe, LeavesOutBytesWithoutATokenAndReplacesBrokenOnes) {
  Words words = byte_level_words();
  words.tokens[0xFF] = "unused";
  const auto tokenizer = made(words.metadata("gpt2"));
  EXPECT_EQ(tokenizer->decode(encode(*tokenizer,
                                     "a\xFF"
                                     "b")),
            "a\xEF\xBF\xBD"
            "b");
  words.tokens['q'] = "other";
  EXPECT_EQ(pieces(*made(words.metadata("gpt2")), "aqb"), (Strings{"a", "b"}));
}

TEST(ScoreMerge, PicksTheBestScoreAndFallsBackToBytes) {
  const auto tokenizer = made(llama_words().metadata("llama"));
  EXPECT_EQ(pieces(*tokenizer, "hi"), (Strings{" hi"}));
  EXPECT_EQ(pieces(*tokenizer, "hi hi"), (Strings{" hi", " hi"}));
  EXPECT_EQ(pieces(*tokenizer, "\xE2\x96\x81hi"), (Strings{" ", " hi"}));
  EXPECT_EQ(encode(*tokenizer, "\xC3\xA9"), (Ids{259, 3 + 0xC3, 3 + 0xA9}));
  EXPECT_EQ(encode(*tokenizer, "hi", {.add_special = true}).front(), 1);
  EXPECT_EQ(tokenizer->decode(encode(*tokenizer, "hi \xC3\xA9")), "hi \xC3\xA9");
}

TEST(ScoreMerge, PrefixesASpaceAfterEverySpecialToken) {
  const auto tokenizer = made(llama_words().metadata("llama"));
  EXPECT_EQ(pieces(*tokenizer, "hi</s>hi", {.parse_special = true}), (Strings{" hi", "</s>", " hi"}));
  EXPECT_EQ(tokenizer->decode(Ids{1, 263, 2}, {.special = false}), " hi");
}

TEST(ScoreMerge, ReadsOldFilesWithoutTypes) {
  const Words words = llama_words();
  Metadata metadata;
  metadata.set("tokenizer.ggml.model", string_value("llama"));
  metadata.set("tokenizer.ggml.tokens", string_array(words.tokens));
  metadata.set("tokenizer.ggml.scores", number_array(ValueKind::kFloat, words.scores));
  const auto tokenizer = made(metadata);
  EXPECT_EQ(tokenizer->decode(encode(*tokenizer, "hi \xC3\xA9\n")), "hi \xC3\xA9\n");
}

TEST(Unigram, PicksTheBestSumOfScores) {
  const auto tokenizer = made(unigram_metadata());
  EXPECT_EQ(pieces(*tokenizer, "hello"), (Strings{" he", "llo"}));
  EXPECT_EQ(pieces(*tokenizer, "aaa"), (Strings{" ", "a", "aa"}));
  EXPECT_EQ(encode(*tokenizer, "hello", {.add_special = true}).back(), 1);
  // A run of unknown characters is one unknown token.
  EXPECT_EQ(pieces(*tokenizer, "hezzz\xC3\xA9llo"), (Strings{" he", "<unk>", "llo"}));
}

TEST(Unigram, FoldsSpacesWhereTheModelAsks) {
  Metadata metadata = unigram_metadata();
  metadata.set("tokenizer.ggml.remove_extra_whitespaces", bool_value(true));
  const auto tokenizer = made(metadata);
  EXPECT_EQ(pieces(*tokenizer, "  hello   hello  "), (Strings{" he", "llo", " he", "llo"}));
}

TEST(Unigram, AppliesThePrecompiledMap) {
  // A double array that maps "A" to "a": root, then the node of 'A' at offset 1 ^ 'A', then its value.
  std::vector<uint32_t> units(512, 0);
  units[0] = 1U << 10;
  const uint32_t node = 1U ^ 'A';
  units[node] = 2U << 10 | 1U << 8 | 'A';
  units[node ^ 2U] = 1U << 31;
  std::vector<uint8_t> bytes(4);
  const auto size = static_cast<uint32_t>(units.size() * 4);
  std::memcpy(bytes.data(), &size, 4);
  const auto* begin = reinterpret_cast<const uint8_t*>(units.data());
  bytes.insert(bytes.end(), begin, begin + size);
  bytes.insert(bytes.end(), {'a', 0});
  Metadata metadata = unigram_metadata();
  metadata.set("tokenizer.ggml.precompiled_charsmap", number_array(ValueKind::kUint, bytes));
  EXPECT_EQ(pieces(*made(metadata), "Aa"), (Strings{" ", "aa"}));
}

TEST(Unigram, SurvivesAMapOfNoise) {
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    std::vector<uint8_t> bytes(4 + 4 * 64 + 16);
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
    const uint32_t size = 4 * 64;
    std::memcpy(bytes.data(), &size, 4);
    bytes.back() = 0;
    Metadata metadata = unigram_metadata();
    metadata.set("tokenizer.ggml.precompiled_charsmap", number_array(ValueKind::kUint, bytes));
    const auto tokenizer = made(metadata);
    std::string text(64, ' ');
    for (char& c : text) c = static_cast<char>(random());
    encode(*tokenizer, text);
  }
}

TEST(Gemma4, MergesCharactersAcrossSpacesButNotLines) {
  const auto tokenizer = made(gemma4_metadata());
  EXPECT_EQ(pieces(*tokenizer, "ab ab"), (Strings{"ab", " ab"}));
  EXPECT_EQ(pieces(*tokenizer, "a\n\nb"), (Strings{"a", "\n\n", "b"}));
  EXPECT_EQ(encode(*tokenizer, "\xC3\xA9"), (Ids{3 + 0xC3, 3 + 0xA9}));
  EXPECT_EQ(encode(*tokenizer, "", {.add_special = true}), Ids{2});
}

TEST(Specials, AreFoundLongestFirstAndControlOnlyOnDemand) {
  Words words = gpt2_words();
  words.add("<user>!", 4);
  const auto tokenizer = made(words.metadata("gpt2"));
  EXPECT_EQ(pieces(*tokenizer, "a<user>!<user>"), (Strings{"a", "<user>!", "<user>"}));
  const int32_t end = tokenizer->find_special("<|im_end|>");
  ASSERT_GE(end, 0);
  EXPECT_EQ(encode(*tokenizer, "<|im_end|>", {.parse_special = true}), Ids{end});
  const Ids plain = encode(*tokenizer, "<|im_end|>");
  EXPECT_EQ(std::count(plain.begin(), plain.end(), end), 0);
  EXPECT_EQ(tokenizer->decode(plain), "<|im_end|>");
  EXPECT_TRUE(tokenizer->is_control(end));
  EXPECT_TRUE(tokenizer->is_eog(end));
  EXPECT_EQ(tokenizer->eot(), end);
  EXPECT_EQ(tokenizer->decode(Ids{end}, {.special = false}), "");
}

TEST(Specials, ThatMergesAlsoMakeAreStillMade) {
  Words words = gpt2_words();
  words.merge("<", "/");
  words.merge("s", ">");
  const int32_t tag = words.merge("</", "s>");
  const auto tokenizer = made(words.metadata("gpt2"));
  EXPECT_TRUE(tokenizer->is_eog(tag));
  EXPECT_TRUE(tokenizer->is_control(tag));
  Metadata metadata = words.metadata("gpt2");
  metadata.set("tokenizer.ggml.pre", string_value("gemma4"));
  metadata.set("tokenizer.ggml.add_bos_token", bool_value(false));
  EXPECT_EQ(encode(*made(metadata), "</s>"), Ids{tag});
}

TEST(Specials, SwallowTheWhiteSpaceAfterThemInPhi3) {
  Words words = llama_words();
  words.add("<|end|>", 3);
  Metadata metadata = words.metadata("llama");
  metadata.set("general.name", string_value("Phi-3 mini"));
  EXPECT_EQ(pieces(*made(metadata), "<|end|> \n hi", {.parse_special = true}), (Strings{"<|end|>", " hi"}));
}

TEST(Specials, EndMarkersOfHarmonyDoNotIncludeEndOfMessagePart) {
  Words words = byte_level_words();
  const int32_t part = words.add("<|end|>", 3);
  const int32_t final = words.add("<|return|>", 3);
  const int32_t call = words.add("<|call|>", 3);
  const int32_t channel = words.add("<|channel|>", 3);
  const auto tokenizer = made(words.metadata("gpt2"));
  EXPECT_FALSE(tokenizer->is_eog(part));
  EXPECT_TRUE(tokenizer->is_eog(final));
  EXPECT_TRUE(tokenizer->is_eog(call));
  EXPECT_FALSE(tokenizer->is_control(channel));
}

TEST(PreTokenizers, AllCompileAndKeepEveryByteOfEveryText) {
  const std::string names = pre_tokenizer_names();
  const std::string text =
      "It's 1234567 \t  \n\n caf\xC3\xA9 \xE4\xB8\xAD\xE6\x96\x87 \xE3\x82\xAB\xED\x95\x9C x_9 IMGIMGABZ <a> "
      "'ll  ";
  int count = 0;
  for (size_t at = 0; at < names.size(); ++count) {
    const size_t comma = std::min(names.find(", ", at), names.size());
    Metadata metadata = gpt2_words().metadata("gpt2");
    metadata.set("tokenizer.ggml.pre", string_value(names.substr(at, comma - at)));
    metadata.set("tokenizer.ggml.add_bos_token", bool_value(false));
    const auto tokenizer = made(metadata);
    if (tokenizer->pre_name() != "gemma4" && tokenizer->pre_name() != "sarvam-moe" &&
        tokenizer->pre_name() != "granite-embed-multi-311m") {
      EXPECT_EQ(tokenizer->decode(encode(*tokenizer, text)), text) << tokenizer->pre_name();
    }
    at = comma + 2;
  }
  EXPECT_GT(count, 80);
}

Strings words_of(std::string_view pre, std::string_view text) {
  auto splitter = PreTokenizer::create(*find_pre_tokenizer(pre));
  EXPECT_TRUE(splitter.ok());
  std::vector<uint32_t> ends;
  EXPECT_TRUE(splitter.value().split(text, &ends).ok());
  Strings out;
  size_t begin = 0;
  for (const size_t end : ends) {
    out.emplace_back(text.substr(begin, end - begin));
    begin = end;
  }
  return out;
}

TEST(PreTokenizers, GroupDigitsAsEachModelDoes) {
  EXPECT_EQ(words_of("smollm", "12345"), (Strings{"1", "2", "3", "4", "5"}));
  EXPECT_EQ(words_of("gpt-2", "12345"), (Strings{"12345"}));
  EXPECT_EQ(words_of("llama-bpe", "12345"), (Strings{"123", "45"}));
  EXPECT_EQ(words_of("superbpe", "a 12345 b"), (Strings{"a ", "12", "345", " b"}));
  EXPECT_EQ(words_of("afmoe", "12345"), (Strings{"12", "345"}));
  EXPECT_EQ(words_of("tiny_aya", "12345 1234a"), (Strings{"12", "345", " ", "123", "4", "a"}));
}

TEST(PreTokenizers, TakeSpacesAsEachModelDoes) {
  EXPECT_EQ(words_of("jais-2", "!\n  \n" + std::string(515, ' ') + "x"),
            (Strings{"!\n", "  \n", std::string(512, ' '), "  ", " x"}));
  EXPECT_EQ(words_of("gpt-2", "a   b\n"), (Strings{"a", "  ", " b", "\n"}));
  EXPECT_EQ(words_of("qwen2", "a \n\n b!\n"), (Strings{"a", " \n\n", " b", "!\n"}));
  EXPECT_EQ(words_of("deepseek-llm", "a  "), (Strings{"a", "  "}));
  EXPECT_EQ(words_of("exaone-moe", "one two three, x"), (Strings{"one two three", ",", " x"}));
}

TEST(LongTexts, WithoutASpaceAreEncodedByEveryKind) {
  constexpr size_t kBytes = 1 << 20;
  std::mt19937 random(3);
  std::string mixed(kBytes, 'a');
  for (char& c : mixed) c = static_cast<char>('a' + random() % 26);
  for (const auto& tokenizer : all_kinds()) {
    for (const std::string& text : {std::string(kBytes, 'a'), mixed, std::string(kBytes, '7'),
                                    std::string(kBytes, '\n'), std::string(kBytes, '\xFF')}) {
      const Ids ids = encode(*tokenizer, text);
      EXPECT_FALSE(ids.empty());
      if (tokenizer->kind_name() != "t5" && text[0] != '\xFF') {
        EXPECT_TRUE(tokenizer->decode(ids) == text);
      }
    }
  }
}

TEST(LongTexts, DoNotStopAnyPreTokenizer) {
  const std::string names = pre_tokenizer_names();
  constexpr size_t kBytes = 1 << 20;
  std::set<const void*> seen;  // Many names share their patterns.
  std::string marks;
  while (marks.size() < kBytes) marks += "a\xCC\x81";
  for (size_t at = 0; at < names.size();) {
    const size_t comma = std::min(names.find(", ", at), names.size());
    const std::string name = names.substr(at, comma - at);
    at = comma + 2;
    if (!seen.insert(find_pre_tokenizer(name)->steps.data()).second) continue;
    auto splitter = PreTokenizer::create(*find_pre_tokenizer(name));
    ASSERT_TRUE(splitter.ok());
    for (const std::string& text :
         {std::string(kBytes, 'a'), std::string(kBytes, 'A'), std::string(kBytes, ' ') + "x",
          std::string(kBytes, '\n') + "x", std::string(kBytes, '1') + "x", std::string(kBytes, '!'), marks}) {
      std::vector<uint32_t> ends;
      const base::Status status = splitter.value().split(text, &ends);
      EXPECT_TRUE(status.ok()) << name << ": " << status.message();
      EXPECT_EQ(ends.back(), text.size()) << name;
    }
  }
}

TEST(RandomBytes, NeverCrashAndComeBackWhereBytesAreKept) {
  std::mt19937 random(11);
  const auto kinds = all_kinds();
  for (int round = 0; round < 2000; ++round) {
    std::string text(random() % 40, ' ');
    for (char& c : text)
      c = static_cast<char>(random() % 3 == 0 ? random() : "ah <s>\n\xE2\x96\x81"[random() % 10]);
    for (const auto& tokenizer : kinds) {
      const Ids ids = encode(*tokenizer, text, {.add_special = true, .parse_special = round % 2 == 0});
      std::string streamed;
      StreamDecoder stream(*tokenizer);
      for (int32_t id : ids) {
        ASSERT_GE(id, 0);
        ASSERT_LT(id, tokenizer->n_tokens());
        const std::string shown = stream.push(id);
        EXPECT_TRUE(utf8_valid(shown));
        streamed += shown;
      }
      streamed += stream.finish();
      std::string whole;
      utf8_append_shown(tokenizer->decode(ids, {.strip_leading_space = false}), &whole);
      EXPECT_EQ(streamed, whole);
      if (tokenizer->kind_name() == "gpt2") {
        EXPECT_EQ(tokenizer->decode(ids), text);
      }
    }
  }
}

TEST(StreamDecoder, NeverSplitsACharacter) {
  const auto tokenizer = made(byte_level_words().metadata("gpt2"));
  const std::string text =
      "a\xC3\xA9\xE4\xB8\xAD\xF0\x9F\x99\x82"
      "b";
  StreamDecoder stream(*tokenizer);
  std::string shown;
  for (unsigned char byte : text) {
    const std::string part = stream.push(byte);
    EXPECT_TRUE(utf8_valid(part));
    shown += part;
  }
  EXPECT_EQ(stream.finish(), "");
  EXPECT_EQ(shown, text);
  EXPECT_EQ(stream.push(0xE4), "");
  EXPECT_EQ(stream.push(0xB8), "");
  EXPECT_EQ(stream.push('x'), "\xEF\xBF\xBDx");
  EXPECT_EQ(stream.push(0xF0), "");
  EXPECT_EQ(stream.finish(), "\xEF\xBF\xBD");
  EXPECT_EQ(stream.push(-1), "");
  EXPECT_EQ(stream.push(1 << 30), "");
}

TEST(Decode, IgnoresIdsOutOfRange) {
  const auto tokenizer = made(gpt2_words().metadata("gpt2"));
  EXPECT_EQ(tokenizer->decode(Ids{-5, 'a', 1 << 30}), "a");
  EXPECT_FALSE(tokenizer->is_eog(-1));
  EXPECT_FALSE(tokenizer->is_control(1 << 30));
  EXPECT_EQ(tokenizer->piece(-1), "");
  EXPECT_EQ(tokenizer->find_special("<nothing>"), -1);
}

}  // namespace
}  // namespace ganglion::tokenizer

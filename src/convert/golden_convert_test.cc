// The Hugging Face fixtures, converted and run: logits, greedy continuation, tokens and chat as the
// references have them. The directories are too large to ship and lie beside the repository.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>

#include "convert/all_logits_for_test.h"
#include "ganglion/chat.h"
#include "ganglion/convert.h"
#include "ganglion/engine.h"
#include "ganglion/text.h"

namespace ganglion {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

const fs::path kFolder = fs::path(GANGLION_SHARED_FIXTURES) / "hf";

std::vector<float> read_floats(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  std::vector<float> out(bytes.size() / 4);
  std::memcpy(out.data(), bytes.data(), out.size() * 4);
  return out;
}

class ConvertGolden : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (!fs::exists(kFolder / GetParam())) {
      GTEST_SKIP() << "NOT TESTED: the Hugging Face fixture " << GetParam()
                   << " is not beside this repository (" << kFolder << ")";
    }
    std::ifstream in(kFolder / (std::string(GetParam()) + ".json"));
    facts_ = json::parse(in);
    output_ = fs::temp_directory_path() / ("convert-golden-" + std::to_string(::getpid()) + ".gguf");
  }
  void TearDown() override { fs::remove(output_); }

  Result<ConvertReport> convert(const std::string& type) {
    return convert_model({.directory = (kFolder / GetParam()).string(),
                          .output_path = output_.string(),
                          .type = type,
                          .pre_tokenizer = ""},
                         nullptr, nullptr);
  }

  std::unique_ptr<Engine> open() {
    EngineOptions options;
    options.model_path = output_.string();
    options.memory = "1G";
    options.kv_type = "f32";
    options.threads = 1;
    options.logit_rows = 8;
    auto engine = Engine::open(options);
    EXPECT_TRUE(engine.ok()) << engine.status().message();
    if (!engine.ok()) return nullptr;
    const Status loaded = engine.value()->load(nullptr, nullptr);
    EXPECT_TRUE(loaded.ok()) << loaded.message();
    return engine.take();
  }

  // Largest difference of a logit from the reference, and the root of their mean square.
  std::pair<double, double> compare_logits() {
    const auto engine = open();
    if (engine == nullptr) return {1e9, 1e9};
    const auto session = engine->new_session().take();
    const json& facts = facts_["long"];
    convert::AllLogits all;
    const Status status = session->evaluate(facts["tokens"].get<std::vector<int32_t>>(), nullptr, &all);
    EXPECT_TRUE(status.ok()) << status.message();
    if (!status.ok()) return {1e9, 1e9};
    const auto expected = read_floats(kFolder / facts["logits_file"].get<std::string>());
    const auto positions = facts["positions"].get<std::vector<size_t>>();
    const size_t vocab = facts["logits_shape"][1];
    double worst = 0, squares = 0;
    for (size_t p = 0; p < positions.size(); ++p) {
      EXPECT_EQ(all.rows[positions[p]].size(), vocab);
      for (size_t i = 0; i < vocab; ++i) {
        const double off = std::abs(static_cast<double>(expected[p * vocab + i] - all.rows[positions[p]][i]));
        worst = std::max(worst, off);
        squares += off * off;
      }
    }
    return {worst, std::sqrt(squares / static_cast<double>(expected.size()))};
  }

  json facts_;
  fs::path output_;
};

TEST_P(ConvertGolden, LogitsAgreeInF32AndAsStored) {
  const auto report = convert("f32");
  ASSERT_TRUE(report.ok()) << report.status().message();
  EXPECT_EQ(report.value().activation, facts_["activation"].get<std::string>());
  const auto [exact, exact_rms] = compare_logits();
  EXPECT_LE(exact, 3e-3);
  ASSERT_TRUE(convert("").ok());
  const auto [stored, stored_rms] = compare_logits();
  EXPECT_LE(stored, 3e-3);
  std::printf("             %-14s f32 %.1e, as stored %.1e\n", GetParam(), exact, stored);
}

TEST_P(ConvertGolden, QuantisedLogitsStayNear) {
  ASSERT_TRUE(convert("q8_0").ok());
  const auto [eight, eight_rms] = compare_logits();
  EXPECT_LE(eight_rms, 0.15);
  ASSERT_TRUE(convert("q4_0").ok());
  const auto [four, four_rms] = compare_logits();
  EXPECT_LE(four_rms, 1.5);
  ASSERT_TRUE(convert("f16").ok());
  const auto [half, half_rms] = compare_logits();
  EXPECT_LE(half, 2e-2);
  std::printf("             %-14s f16 %.1e, rms of q8_0 %.2g, of q4_0 %.2g\n", GetParam(), half, eight_rms,
              four_rms);
}

TEST_P(ConvertGolden, GreedyContinuationAgrees) {
  ASSERT_TRUE(convert("f32").ok());
  const auto engine = open();
  ASSERT_NE(engine, nullptr);
  const auto session = engine->new_session().take();
  const json& facts = facts_["short"];
  ASSERT_TRUE(session->evaluate(facts["tokens"].get<std::vector<int32_t>>()).ok());
  for (const int32_t expected : facts["greedy"].get<std::vector<int32_t>>()) {
    const auto logits = session->logits();
    EXPECT_EQ(std::max_element(logits.begin(), logits.end()) - logits.begin(), expected);
    ASSERT_TRUE(session->evaluate({&expected, 1}).ok());
  }
}

TEST_P(ConvertGolden, TokensAndChatAgree) {
  ASSERT_TRUE(convert("").ok());
  const auto opened = TextModel::open(output_.string());
  ASSERT_TRUE(opened.ok()) << opened.status().message();
  const TextModel& text = *opened.value();
  EXPECT_TRUE(text.warnings().empty()) << text.warnings()[0];
  const json& tokenizer = facts_["tokenizer"];
  const auto id = [&](const char* name) {
    return tokenizer[name].is_null() ? -1 : tokenizer[name].get<int>();
  };
  EXPECT_EQ(text.bos(), id("bos_id"));
  EXPECT_EQ(text.eos(), id("eos_id"));
  EXPECT_EQ(text.adds_bos(), tokenizer["add_bos"].get<bool>());
  EXPECT_EQ(text.vocab_size(), facts_["n_vocab"].get<int>());
  for (const json& entry : tokenizer["cases"]) {
    const auto ids = text.encode(entry["text"].get<std::string>(), false, true);
    ASSERT_TRUE(ids.ok());
    EXPECT_EQ(ids.value(), entry["ids"].get<std::vector<int32_t>>()) << entry["text"];
  }
  const json& special = tokenizer["with_special"];
  EXPECT_EQ(text.encode(special["text"].get<std::string>(), true, true).value(),
            special["ids"].get<std::vector<int32_t>>());
  if (!facts_.contains("chat")) {
    EXPECT_EQ(text.chat_template(), "");
    return;
  }
  const json& chat = facts_["chat"];
  EXPECT_EQ(text.encode(chat["rendered"].get<std::string>(), false, true).value(),
            chat["ids"].get<std::vector<int32_t>>());
  if (!chat_available()) GTEST_SKIP() << "NOT TESTED: chat templates are not in this build";
  const json request = {{"messages", chat["messages"]}, {"kwargs", {{"add_generation_prompt", true}}}};
  const auto rendered = render_chat(text.chat_template(), request.dump());
  ASSERT_TRUE(rendered.ok()) << rendered.status().message();
  EXPECT_EQ(rendered.value(), chat["rendered"].get<std::string>());
}

TEST_P(ConvertGolden, EveryEndOfGenerationIsKnown) {
  ASSERT_TRUE(convert("").ok());
  std::ifstream in(kFolder / GetParam() / "generation_config.json");
  const json ends = json::parse(in)["eos_token_id"];
  const auto opened = TextModel::open(output_.string());
  ASSERT_TRUE(opened.ok());
  for (const json& end : ends.is_array() ? ends : json::array({ends})) {
    EXPECT_TRUE(opened.value()->is_end_of_generation(end.get<int32_t>())) << end;
  }
}

TEST_P(ConvertGolden, SameBitsInPartsAndStreamed) {
  ASSERT_TRUE(convert("").ok());
  const auto tokens = facts_["long"]["tokens"].get<std::vector<int32_t>>();
  std::vector<float> expected;
  for (const char* memory : {"1G", "min"}) {
    EngineOptions options;
    options.model_path = output_.string();
    options.memory = memory;
    options.threads = 2;
    const auto engine = Engine::open(options).take();
    ASSERT_TRUE(engine->load(nullptr, nullptr).ok());
    for (const size_t part : {tokens.size(), size_t{1}, size_t{7}}) {
      const auto session = engine->new_session().take();
      for (size_t at = 0; at < tokens.size(); at += part) {
        const size_t count = std::min(part, tokens.size() - at);
        ASSERT_TRUE(session->evaluate({tokens.data() + at, count}).ok());
      }
      const std::vector<float> logits(session->logits().begin(), session->logits().end());
      if (expected.empty()) expected = logits;
      EXPECT_EQ(logits, expected) << memory << ", parts of " << part;
    }
  }
}

TEST_P(ConvertGolden, DamagedCopiesAreRefusedByName) {
  const fs::path copy = output_.string() + ".hf";
  const auto expect_refused = [&](const std::function<void()>& damage, const std::string& word) {
    fs::remove_all(copy);
    fs::copy(kFolder / GetParam(), copy);
    for (const auto& entry : fs::directory_iterator(copy)) {
      fs::permissions(entry.path(), fs::perms::owner_all);
    }
    damage();
    const auto report = convert_model(
        {.directory = copy.string(), .output_path = output_.string(), .type = "", .pre_tokenizer = ""},
        nullptr, nullptr);
    ASSERT_FALSE(report.ok()) << word;
    EXPECT_EQ(exit_code(report.status().code()), 3) << report.status().message();
    EXPECT_NE(report.status().message().find(word), std::string::npos) << report.status().message();
    EXPECT_FALSE(fs::exists(output_));
  };
  fs::path weights;  // The last shard.
  for (const auto& entry : fs::directory_iterator(kFolder / GetParam())) {
    if (entry.path().extension() == ".safetensors" && entry.path().filename() > weights)
      weights = entry.path().filename();
  }
  // Replaces text in the header of the last shard by text of the same length.
  const auto replace = [&](const std::string& from, const std::string& to) {
    ASSERT_EQ(from.size(), to.size());
    std::fstream file(copy / weights, std::ios::in | std::ios::out | std::ios::binary);
    std::string head(4096, '\0');
    file.read(head.data(), static_cast<std::streamsize>(head.size()));
    const size_t at = head.find(from);
    ASSERT_NE(at, std::string::npos);
    file.seekp(static_cast<std::streamoff>(at));
    file << to;
  };
  const bool f32 = facts_["dtype"] == "float32";
  expect_refused([&] { fs::resize_file(copy / weights, fs::file_size(copy / weights) - 1); }, "truncated");
  expect_refused([&] { fs::resize_file(copy / weights, 1000); }, "truncated");
  expect_refused([&] { replace(f32 ? "\"F32\"" : "\"BF16\"", f32 ? "\"F16\"" : "\"BF32\""); },
                 f32 ? "offsets hold" : "dtype 'BF32'");
  expect_refused([&] { replace(f32 ? "\"F32\"" : "\"BF16\"", f32 ? "\"I32\"" : "\"I16\" "); }, "dtype I");
  expect_refused([&] { replace("layers.1", "layers.9"); }, "missing");
  expect_refused([&] { fs::remove(copy / weights); },
                 fs::exists(copy / "model.safetensors.index.json") ? weights.string() : "no *.safetensors");
  fs::remove_all(copy);
}

INSTANTIATE_TEST_SUITE_P(Directories, ConvertGolden,
                         ::testing::Values("llama-relu", "bamboo", "mixtral-drelu", "qwen2", "qwen3", "llama",
                                           "opt"),
                         [](const auto& test) {
                           std::string name = test.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace ganglion

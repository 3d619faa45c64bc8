// Keys and values in files: what is restored goes on with the bits of what was saved; anything else is
// refused and leaves an empty session that works.
#include "engine/saved_sequence.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "ganglion/engine.h"

namespace ganglion {
namespace {

namespace fs = std::filesystem;

struct Setting {
  const char* model;
  const char* kv_type;
};

std::unique_ptr<Engine> open(const Setting& setting, const std::string& memory = "1G", size_t context = 512) {
  EngineOptions options;
  options.model_path = std::string(GANGLION_FIXTURES) + "/models/" + setting.model + ".gguf";
  options.memory = memory;
  options.threads = 2;
  options.context = context;
  options.chunk = 16;
  options.kv_type = setting.kv_type;
  auto engine = Engine::open(options);
  EXPECT_TRUE(engine.ok()) << engine.status().message();
  const Status loaded = engine.value()->load(nullptr, nullptr);
  EXPECT_TRUE(loaded.ok()) << loaded.message();
  return engine.take();
}

std::vector<int32_t> some_tokens(size_t count) {
  std::vector<int32_t> tokens;
  for (size_t i = 0; i < count; ++i)
    tokens.push_back(static_cast<int32_t>((7 + 13 * i + i * i / 7) % 200 + 3));
  return tokens;
}

std::vector<float> logits(const Session& session) {
  return {session.logits().begin(), session.logits().end()};
}

class Folder {
 public:
  Folder() {
    std::string pattern = (fs::temp_directory_path() / "ganglion-kv-XXXXXX").string();
    path_ = ::mkdtemp(pattern.data());
  }
  ~Folder() { fs::remove_all(path_); }
  std::string file(const char* name) const { return (fs::path(path_) / name).string(); }
  size_t count() const {
    return static_cast<size_t>(std::distance(fs::directory_iterator(path_), fs::directory_iterator()));
  }

 private:
  std::string path_;
};

std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

void write_file(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

class SavedSequence : public testing::TestWithParam<Setting> {};

TEST_P(SavedSequence, GoesOnWithTheBitsOfTheOneThatWasSaved) {
  const Folder folder;
  const std::vector<int32_t> tokens = some_tokens(230);
  // 1 position, a page and its neighbours, and more than windows hold.
  for (const size_t length : {1, 63, 64, 65, 200}) {
    const std::span<const int32_t> prompt = std::span(tokens).first(length);
    std::vector<float> expected;
    {
      auto engine = open(GetParam());
      auto session = engine->new_session().take();
      ASSERT_TRUE(session->evaluate(prompt).ok());
      const Result<uint64_t> saved = session->save(folder.file("kv"), prompt, UINT64_MAX);
      ASSERT_TRUE(saved.ok()) << saved.status().message();
      EXPECT_EQ(saved.value(), fs::file_size(folder.file("kv")));
      ASSERT_TRUE(session->evaluate(std::span(tokens).subspan(length, 25)).ok());
      expected = logits(*session);
    }
    for (const char* memory : {"1G", "min"}) {
      auto engine = open(GetParam(), memory);
      auto session = engine->new_session().take();
      const Result<std::vector<int32_t>> restored = session->restore(folder.file("kv"));
      ASSERT_TRUE(restored.ok()) << restored.status().message();
      EXPECT_TRUE(std::equal(prompt.begin(), prompt.end(), restored.value().begin(), restored.value().end()));
      EXPECT_EQ(session->position(), length);
      EXPECT_TRUE(session->logits().empty());
      // The server evaluates the last token again, for its logits.
      ASSERT_TRUE(session->try_rewind(length - 1));
      ASSERT_TRUE(session->evaluate(std::span(tokens).subspan(length - 1, 26)).ok());
      EXPECT_EQ(logits(*session), expected) << length << " tokens, " << memory;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, SavedSequence,
                         testing::Values(Setting{"llama-q4_0", "f16"}, Setting{"llama-q4_0", "q8_0"},
                                         Setting{"gemma3-f32", "f32"}, Setting{"deepseek2-f32", "f16"},
                                         Setting{"gpt-oss-mxfp4_moe", "f16"}),
                         [](const auto& info) {
                           std::string name = std::string(info.param.model) + "_" + info.param.kv_type;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST(SavedSequenceFile, DamageIsFoundAndLeavesAnEmptySession) {
  const Folder folder;
  const Setting setting = {"llama-q4_0", "f16"};
  const std::vector<int32_t> tokens = some_tokens(70);
  auto engine = open(setting);
  auto session = engine->new_session().take();
  ASSERT_TRUE(session->evaluate(tokens).ok());
  const std::vector<float> expected = logits(*session);
  ASSERT_TRUE(session->save(folder.file("kv"), tokens, UINT64_MAX).ok());
  const std::string whole = read_file(folder.file("kv"));
  const auto refused = [&](const std::string& bytes, const std::string& what) {
    write_file(folder.file("bad"), bytes);
    const auto restored = session->restore(folder.file("bad"));
    if (restored.ok()) return false;
    EXPECT_EQ(restored.status().code(), Code::kModelFile) << what << ": " << restored.status().message();
    // What was there stays until keys and values are read.
    EXPECT_TRUE(session->position() == 0 || session->position() == tokens.size());
    session->reset();
    return true;
  };
  size_t unnoticed = 0;
  for (size_t at = 0; at < whole.size(); at += 509) {
    std::string bytes = whole;
    bytes[at] = static_cast<char>(bytes[at] ^ 0x20);
    // Names and padding may differ; keys, values, tokens and checksums may not.
    unnoticed += refused(bytes, "byte " + std::to_string(at)) ? 0 : 1;
  }
  EXPECT_LE(unnoticed, 2u);
  for (const size_t length : {size_t{0}, size_t{7}, size_t{300}, whole.size() / 2, whole.size() - 1})
    EXPECT_TRUE(refused(whole.substr(0, length), std::to_string(length) + " bytes"));
  ASSERT_TRUE(session->evaluate(tokens).ok());
  EXPECT_EQ(logits(*session), expected);
}

TEST(SavedSequenceFile, OtherModelsKindsAndContextsAreRefusedByName) {
  const Folder folder;
  const std::vector<int32_t> tokens = some_tokens(70);
  {
    auto engine = open({"llama-q4_0", "f16"});
    auto session = engine->new_session().take();
    ASSERT_TRUE(session->evaluate(tokens).ok());
    ASSERT_TRUE(session->save(folder.file("kv"), tokens, UINT64_MAX).ok());
  }
  const auto message = [&](const Setting& setting, size_t context, const std::string& file, Code code) {
    auto engine = open(setting, "1G", context);
    auto session = engine->new_session().take();
    EXPECT_TRUE(session->evaluate(std::span(tokens).first(9)).ok());
    const auto restored = session->restore(file);
    EXPECT_EQ(session->position(), 9u);
    EXPECT_FALSE(restored.ok());
    if (restored.ok()) return std::string();
    EXPECT_EQ(restored.status().code(), code) << restored.status().message();
    EXPECT_TRUE(session->evaluate(std::span(tokens).first(5)).ok());
    return restored.status().message();
  };
  EXPECT_NE(
      message({"llama-q4_k_m", "f16"}, 512, folder.file("kv"), Code::kInvalidArgument).find("another model"),
      std::string::npos);
  EXPECT_NE(
      message({"llama-q4_0", "q8_0"}, 512, folder.file("kv"), Code::kInvalidArgument).find("--kv-type f16"),
      std::string::npos);
  const std::string overflow = message({"llama-q4_0", "f16"}, 64, folder.file("kv"), Code::kContextOverflow);
  EXPECT_NE(overflow.find("70"), std::string::npos);
  EXPECT_NE(overflow.find("64"), std::string::npos);
  message({"llama-q4_0", "f16"}, 512, folder.file("none"), Code::kNotFound);
  message({"llama-q4_0", "f16"}, 512, std::string(GANGLION_FIXTURES) + "/models/llama-q4_0.gguf",
          Code::kModelFile);
}

TEST(SavedSequenceFile, ASaveThatFailsLeavesTheOldFile) {
  const Folder folder;
  const std::vector<int32_t> tokens = some_tokens(70);
  auto engine = open({"llama-q4_0", "f16"});
  auto session = engine->new_session().take();
  EXPECT_EQ(session->save(folder.file("kv"), {}, UINT64_MAX).status().code(), Code::kInvalidArgument);
  ASSERT_TRUE(session->evaluate(tokens).ok());
  const auto saved = session->save(folder.file("kv"), tokens, UINT64_MAX);
  ASSERT_TRUE(saved.ok());
  const std::string before = read_file(folder.file("kv"));
  const auto too_large = session->save(folder.file("kv"), tokens, saved.value() / 2);
  ASSERT_FALSE(too_large.ok());
  EXPECT_EQ(too_large.status().code(), Code::kResources);
  EXPECT_EQ(session->save(folder.file("kv"), std::span(tokens).first(69), UINT64_MAX).status().code(),
            Code::kInvalidArgument);
  EXPECT_EQ(session->save(folder.file("no/kv"), tokens, UINT64_MAX).status().code(), Code::kIo);
  EXPECT_EQ(read_file(folder.file("kv")), before);
  EXPECT_EQ(folder.count(), 1u);
}

}  // namespace
}  // namespace ganglion

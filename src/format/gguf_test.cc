#include "format/gguf.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

namespace ganglion::format {
namespace {

namespace fs = std::filesystem;
const std::string kFixtures = GANGLION_FIXTURES;

nlohmann::json read_json(const std::string& path) {
  std::ifstream in(path);
  return nlohmann::json::parse(in);
}

bool contains_any(std::string text, const nlohmann::json& words) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  for (const auto& word : words) {
    if (text.find(word.get<std::string>()) != std::string::npos) return true;
  }
  return words.empty();
}

// Faults that a header alone does not show; engine tests refuse those.
bool only_visible_to_the_model(const std::string& file) {
  return file.rfind("missing-", 0) == 0 || file.rfind("feed-forward", 0) == 0;
}

TEST(Gguf, RefusesEveryBrokenHeaderByItsFault) {
  int refused = 0;
  const auto manifest = read_json(kFixtures + "/broken/manifest.json");
  for (const auto& entry : manifest["files"]) {
    const std::string file = entry["file"];
    const auto model = GgufModel::open(kFixtures + "/broken/" + file);
    if (entry["expected"] == "refuse" && !only_visible_to_the_model(file)) {
      ASSERT_FALSE(model.ok()) << file;
      EXPECT_TRUE(contains_any(model.status().message(), entry["words"]))
          << file << ": " << model.status().message();
      EXPECT_EQ(model.status().message().find('\n'), std::string::npos) << file;
      ++refused;
    } else if (entry["expected"] == "accept") {
      EXPECT_TRUE(model.ok()) << file << ": " << model.status().message();
    }
  }
  EXPECT_GE(refused, 10);
}

TEST(Gguf, KnowsPowerInfersMagicAndNoOther) {
  const fs::path copy = fs::temp_directory_path() / ("gguf-magic-" + std::to_string(::getpid()) + ".gguf");
  fs::copy_file(kFixtures + "/broken/intact-dense.gguf", copy, fs::copy_options::overwrite_existing);
  EXPECT_FALSE(GgufModel::open(copy.string()).take().powerinfer());
  for (const char* magic : {"PWRI", "PWRX"}) {
    std::fstream(copy, std::ios::in | std::ios::out | std::ios::binary) << magic;
    const auto model = GgufModel::open(copy.string());
    const bool known = std::string(magic) == "PWRI";
    EXPECT_EQ(model.ok(), known) << magic;
    if (known) {
      EXPECT_TRUE(model.value().powerinfer());
    }
  }
  fs::remove(copy);
}

TEST(Gguf, AnySplitShardOrItsDirectoryOpensTheWholeModel) {
  const auto manifest = read_json(kFixtures + "/splits/manifest.json");
  for (const auto& entry : manifest["sets"]) {
    const std::string dir = kFixtures + "/splits/" + entry["dir"].get<std::string>();
    std::vector<std::string> ways = {dir};
    for (const auto& file : entry["files"]) ways.push_back(dir + "/" + file.get<std::string>());
    for (const std::string& way : ways) {
      const auto model = GgufModel::open(way);
      if (entry["expected"] == "refuse") {
        ASSERT_FALSE(model.ok()) << way;
        EXPECT_TRUE(contains_any(model.status().message(), entry["words"])) << model.status().message();
        continue;
      }
      ASSERT_TRUE(model.ok()) << way << ": " << model.status().message();
      size_t tensors = 0;
      for (const auto& of_shard : entry["tensors"]) tensors += of_shard.get<size_t>();
      EXPECT_EQ(model.value().tensors().size(), tensors);
      EXPECT_TRUE(model.value().metadata().has("general.architecture"));
    }
  }
}

// A little-endian byte writer for headers that are wrong on purpose.
class Bytes {
 public:
  template <typename T>
  Bytes& put(T value) {
    data_.append(reinterpret_cast<const char*>(&value), sizeof value);
    return *this;
  }
  Bytes& text(const std::string& s) {
    put<uint64_t>(s.size());
    data_ += s;
    return *this;
  }
  Bytes& raw(const std::string& s) {
    data_ += s;
    return *this;
  }
  std::string data_;
};

Bytes prologue(uint64_t tensors, uint64_t keys, uint32_t version = 3) {
  Bytes b;
  b.raw("GGUF").put<uint32_t>(version).put<uint64_t>(tensors).put<uint64_t>(keys);
  return b;
}

std::string refusal(const std::string& bytes) {
  const fs::path path = fs::temp_directory_path() / ("ganglion_gguf_" + std::to_string(::getpid()));
  std::ofstream(path, std::ios::binary) << bytes;
  const auto model = GgufModel::open(path.string());
  fs::remove(path);
  return model.ok() ? "accepted" : model.status().message();
}

void expect_refusal(const Bytes& bytes, const std::string& word) {
  const std::string message = refusal(bytes.data_ + std::string(256, '\0'));
  EXPECT_NE(message.find(word), std::string::npos) << message;
}

TEST(Gguf, NamesWhatIsWrongWithACraftedHeader) {
  expect_refusal(prologue(0, 0, 1), "version 1");
  expect_refusal(prologue(0, 0, 0x03000000), "big-endian");
  expect_refusal(prologue(1ULL << 60, 0), "more than the file can hold");
  expect_refusal(prologue(0, 1).text("").put<uint32_t>(4).put<uint32_t>(1), "key is empty");
  expect_refusal(
      prologue(0, 2).text("k").put<uint32_t>(0).put<uint8_t>(1).text("k").put<uint32_t>(0).put<uint8_t>(1),
      "occurs twice");
  expect_refusal(prologue(0, 1).text("k").put<uint32_t>(9).put<uint32_t>(9).put<uint64_t>(1), "element type");
  expect_refusal(prologue(0, 1).text("general.alignment").put<uint32_t>(4).put<uint32_t>(3), "power of two");
  expect_refusal(prologue(0, 1).text("general.alignment").put<uint32_t>(8).text("x"), "alignment");
  expect_refusal(prologue(1, 0).text("t").put<uint32_t>(1).put<uint64_t>(0).put<uint32_t>(0).put<uint64_t>(0),
                 "size 0");
  expect_refusal(
      prologue(1, 0).text("t").put<uint32_t>(1).put<uint64_t>(33).put<uint32_t>(2).put<uint64_t>(0),
      "multiple of 32");
  expect_refusal(
      prologue(1, 0).text("t").put<uint32_t>(1).put<uint64_t>(4).put<uint32_t>(105).put<uint64_t>(0),
      "'t' has type number 105");
  expect_refusal(prologue(1, 0).text("t").put<uint32_t>(1).put<uint64_t>(4).put<uint32_t>(0).put<uint64_t>(7),
                 "alignment 32");
  expect_refusal(
      prologue(1, 0).text("t").put<uint32_t>(1).put<uint64_t>(4).put<uint32_t>(0).put<uint64_t>(~31ULL),
      "beyond the end");
  expect_refusal(prologue(2, 0)
                     .text("t")
                     .put<uint32_t>(1)
                     .put<uint64_t>(4)
                     .put<uint32_t>(0)
                     .put<uint64_t>(0)
                     .text("t")
                     .put<uint32_t>(1)
                     .put<uint64_t>(4)
                     .put<uint32_t>(0)
                     .put<uint64_t>(0),
                 "occurs twice");
}

TEST(Gguf, EveryPrefixOfAValidFileIsRefusedWithoutCrashing) {
  std::ifstream in(kFixtures + "/broken/intact-dense.gguf", std::ios::binary);
  const std::string whole((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  for (size_t length = 0; length < whole.size(); length += length < 200 ? 1 : 211) {
    EXPECT_NE(refusal(whole.substr(0, length)), "accepted") << length;
  }
  EXPECT_EQ(refusal(whole), "accepted");
}

TEST(Gguf, ShardsOfDifferentModelsDoNotJoin) {
  const fs::path dir = fs::temp_directory_path() / ("ganglion_split_" + std::to_string(::getpid()));
  fs::create_directories(dir);
  const std::string three = kFixtures + "/splits/three/";
  const auto sets = read_json(kFixtures + "/splits/manifest.json")["sets"];
  const std::string first = sets[0]["files"][0];
  const std::string prefix = first.substr(0, first.find("-00001-of"));
  // Two names that claim to be of two, with a header that says of three.
  for (int i = 1; i <= 2; ++i) {
    fs::copy_file(three + prefix + "-0000" + std::to_string(i) + "-of-00003.gguf",
                  dir / ("m-0000" + std::to_string(i) + "-of-00002.gguf"));
  }
  const auto joined = GgufModel::open(dir.string());
  ASSERT_FALSE(joined.ok());
  EXPECT_NE(joined.status().message().find("do not belong together"), std::string::npos);
  fs::copy_file(three + prefix + "-00002-of-00003.gguf", dir / "renamed.gguf");
  const auto renamed = GgufModel::open((dir / "renamed.gguf").string());
  ASSERT_FALSE(renamed.ok());
  EXPECT_NE(renamed.status().message().find("part 2 of 3"), std::string::npos) << renamed.status().message();
  fs::remove_all(dir);
}

}  // namespace
}  // namespace ganglion::format

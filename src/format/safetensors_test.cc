// Headers of safetensors files: what is right is read, every kind of wrong is refused by what is wrong.
#include "format/safetensors.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "format/json.h"

namespace ganglion::format {
namespace {

base::Result<std::vector<SafeTensor>> read(const std::string& header, size_t data_bytes,
                                           int64_t length_off = 0) {
  const std::string path =
      (std::filesystem::temp_directory_path() / ("safetensors-test-" + std::to_string(::getpid()))).string();
  const uint64_t length = header.size() + static_cast<uint64_t>(length_off);
  std::ofstream(path, std::ios::binary)
      << std::string(reinterpret_cast<const char*>(&length), 8) << header << std::string(data_bytes, '\0');
  const auto file = platform::File::open(path);
  std::filesystem::remove(path);
  return read_safetensors(file.value());
}

TEST(Safetensors, GivesTensorsInTheOrderOfTheirData) {
  const std::string header =
      R"({"__metadata__":{"format":"pt"},"b":{"dtype":"BF16","shape":[2,3],"data_offsets":[4,16]},)"
      R"("a":{"dtype":"F32","shape":[],"data_offsets":[0,4]},"n":{"dtype":"I64","shape":[0],)"
      R"("data_offsets":[16,16]}})";
  const auto tensors = read(header, 16);
  ASSERT_TRUE(tensors.ok()) << tensors.status().message();
  ASSERT_EQ(tensors.value().size(), 3U);
  EXPECT_EQ(tensors.value()[0].name, "a");
  EXPECT_EQ(tensors.value()[0].elements, 1U);
  EXPECT_EQ(tensors.value()[1].offset, 8 + header.size() + 4);
  EXPECT_EQ(tensors.value()[1].type, base::TensorType::kBF16);
  EXPECT_EQ(tensors.value()[1].shape_text(), "[2, 3]");
  EXPECT_FALSE(tensors.value()[2].type.has_value());
}

TEST(Safetensors, RefusesEveryWrongHeaderByItsFault) {
  const struct {
    const char* header;
    size_t data_bytes;
    const char* word;
  } kCases[] = {
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 7, "truncated"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", 4, "takes 8 bytes"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}})", 8, "not a range"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,-8]}})", 8, "not a range"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0]}})", 8, "not a range"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[18446744073709551608,18446744073709551615]}})", 8,
       "takes 8 bytes"},
      {R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}})", 0, "cannot be"},
      {R"({"a":{"dtype":"F32","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,4]}})", 4, "cannot be"},
      {R"({"a":{"dtype":"F32","shape":[1.5],"data_offsets":[0,4]}})", 4, "cannot be"},
      {R"({"a":{"dtype":"F33","shape":[1],"data_offsets":[0,4]}})", 4, "F33"},
      {R"({"a":{"shape":[1],"data_offsets":[0,4]}})", 4, "no dtype"},
      {R"({"a":7})", 0, "no dtype"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
       R"("b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
       4, "overlapping"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", 8, "gap"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 8, "belong to no tensor"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
       R"("a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
       4, "twice"},
      {R"([])", 0, "not a JSON object"},
      {R"({"a":)", 0, "not valid JSON"},
      {"{\"\xFF\":1}", 0, "not valid JSON"},
  };
  for (const auto& wrong : kCases) {
    const auto tensors = read(wrong.header, wrong.data_bytes);
    ASSERT_FALSE(tensors.ok()) << wrong.header;
    EXPECT_EQ(exit_code(tensors.status().code()), 3) << tensors.status().message();
    EXPECT_NE(tensors.status().message().find(wrong.word), std::string::npos) << tensors.status().message();
  }
  EXPECT_NE(read("{}", 0, 1).status().message().find("truncated"), std::string::npos);
  EXPECT_NE(read("{}", 0, int64_t{1} << 60).status().message().find("not a safetensors"), std::string::npos);
}

TEST(Safetensors, SurvivesEveryChangeOfAByte) {
  const std::string header =
      R"({"a":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]},"b":{"dtype":"BF16","shape":[2],)"
      R"("data_offsets":[8,12]}})";
  size_t accepted = 0;
  for (size_t at = 0; at < header.size(); ++at) {
    for (const char with : std::string("0129\"[{,:-e.\\\xFF")) {
      std::string changed = header;
      changed[at] = with;
      const auto tensors = read(changed, 12);
      if (!tensors.ok()) continue;
      ++accepted;
      uint64_t bytes = 0;
      for (const SafeTensor& tensor : tensors.value()) bytes += tensor.bytes;
      EXPECT_EQ(bytes, 12U) << changed;
    }
  }
  EXPECT_GT(accepted, 0U) << "names may change";
}

TEST(Json, BoundsDepthAndNeverThrows) {
  EXPECT_FALSE(Json::parse(std::string(100'000, '['), "x").ok());
  EXPECT_FALSE(Json::parse("\"\\ud800\"", "x").ok());
  EXPECT_FALSE(Json::parse("", "x").ok());
  const auto json = Json::parse(R"({"a":[1,-2,2.5,"s",null,true]})", "x");
  ASSERT_TRUE(json.ok());
  const auto& items = json.value()["a"].items();
  uint64_t value = 0;
  EXPECT_TRUE(items[0].try_uint(1, &value));
  EXPECT_FALSE(items[0].try_uint(0, &value));
  EXPECT_FALSE(items[1].try_uint(9, &value));
  EXPECT_EQ(items[1].number_or(0), -2);
  EXPECT_EQ(items[2].number_or(0), 2.5);
  EXPECT_EQ(items[3].text(), "s");
  EXPECT_TRUE(items[4].is_null());
  EXPECT_TRUE(items[5].bool_or(false));
  EXPECT_TRUE(json.value()["missing"]["deeper"].is_null());
}

}  // namespace
}  // namespace ganglion::format

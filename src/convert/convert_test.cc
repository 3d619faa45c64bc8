// Conversion of a directory that the test writes itself: what comes out, and one refusal by name for every
// kind of damage.
#include "ganglion/convert.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <functional>
#include <limits>

#include "base/metadata.h"
#include "convert/checkpoint_for_test.h"
#include "convert/quantise.h"
#include "convert/tokenizer_files.h"
#include "format/gguf.h"
#include "platform/file.h"

namespace ganglion::convert {
namespace {

namespace fs = std::filesystem;
using base::TensorType;

class Convert : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::temp_directory_path() / ("convert-test-" + std::to_string(::getpid()));
    fs::create_directories(root_);
  }
  void TearDown() override { fs::remove_all(root_); }

  Result<ConvertReport> convert(const fs::path& directory, const std::string& type = "") {
    return convert_model({.directory = directory.string(),
                          .output_path = (root_ / "out.gguf").string(),
                          .type = type,
                          .pre_tokenizer = ""},
                         nullptr, nullptr);
  }

  format::GgufModel output() { return format::GgufModel::open((root_ / "out.gguf").string()).take(); }

  void expect_refused(const CheckpointForTest& checkpoint, const std::string& word, int code = 3) {
    const auto report = convert(checkpoint.write(root_ / "hf"));
    ASSERT_FALSE(report.ok()) << word;
    EXPECT_EQ(exit_code(report.status().code()), code) << report.status().message();
    EXPECT_NE(report.status().message().find(word), std::string::npos) << report.status().message();
    EXPECT_EQ(report.status().message().find('\n'), std::string::npos);
    EXPECT_FALSE(fs::exists(root_ / "out.gguf"));
    EXPECT_FALSE(fs::exists(root_ / "out.gguf.part"));
  }

  fs::path root_;
};

std::vector<float> floats_of(const fs::path& gguf, const format::TensorInfo& tensor) {
  const auto file = platform::File::open(gguf.string());
  std::vector<uint8_t> bytes(tensor.bytes);
  EXPECT_TRUE(file.value().read_exact(tensor.offset, bytes).ok());
  std::vector<float> out(tensor.elements());
  to_floats(tensor.type, bytes.data(), out);
  return out;
}

TEST_F(Convert, InterleavesQueryAndKeyRowsOfEachHead) {
  const CheckpointForTest checkpoint;
  const auto report = convert(checkpoint.write(root_ / "hf"));
  ASSERT_TRUE(report.ok()) << report.status().message();
  EXPECT_EQ(report.value().architecture, "llama");
  const auto model = output();
  const auto& offsets =
      checkpoint.headers.at("model.safetensors").at("model.layers.0.self_attn.k_proj.weight")["data_offsets"];
  std::vector<float> source(32 * 64);
  std::memcpy(source.data(), checkpoint.data.at("model.safetensors").data() + offsets[0].get<size_t>(),
              source.size() * 4);
  const auto* tensor = model.find_tensor("blk.0.attn_k.weight");
  ASSERT_NE(tensor, nullptr);
  const std::vector<float> rows = floats_of(root_ / "out.gguf", *tensor);
  for (size_t head = 0; head < 2; ++head) {
    for (size_t i = 0; i < 16; ++i) {
      const size_t from = head * 16 + i / 2 + (i % 2) * 8;
      EXPECT_EQ(rows[(head * 16 + i) * 64 + 5], source[from * 64 + 5]) << head << " " << i;
    }
  }
}

TEST_F(Convert, WritesEveryTypeAndKeepsVectorsFloat) {
  const fs::path directory = CheckpointForTest().write(root_ / "hf");
  for (const auto& [name, type] : {std::pair{"f32", TensorType::kF32},
                                   {"f16", TensorType::kF16},
                                   {"bf16", TensorType::kBF16},
                                   {"q8_0", TensorType::kQ8_0},
                                   {"q4_0", TensorType::kQ4_0}}) {
    const auto report = convert(directory, name);
    ASSERT_TRUE(report.ok()) << report.status().message();
    const auto model = output();
    EXPECT_EQ(model.find_tensor("blk.0.ffn_down.weight")->type, type);
    EXPECT_EQ(model.find_tensor("blk.0.attn_norm.weight")->type, TensorType::kF32);
    EXPECT_EQ(model.find_tensor("output.weight")->type, type == TensorType::kQ4_0 ? TensorType::kQ8_0 : type);
  }
  EXPECT_EQ(convert(directory, "q3_k").status().code(), Code::kInvalidArgument);
}

TEST_F(Convert, StopsWhenAskedAndLeavesNothing) {
  const fs::path directory = CheckpointForTest().write(root_ / "hf");
  const auto stop = [](void*, uint64_t done, uint64_t) { return done == 0; };
  const auto report = convert_model({.directory = directory.string(),
                                     .output_path = (root_ / "out.gguf").string(),
                                     .type = "",
                                     .pre_tokenizer = ""},
                                    stop, nullptr);
  EXPECT_EQ(report.status().code(), Code::kCancelled);
  EXPECT_FALSE(fs::exists(root_ / "out.gguf"));
  EXPECT_FALSE(fs::exists(root_ / "out.gguf.part"));
}

TEST_F(Convert, LeavesTheCheckpointAlone) {
  const fs::path directory = CheckpointForTest().write(root_ / "hf");
  const fs::path weights = directory / "model.safetensors";
  const auto bytes = fs::file_size(weights);
  const auto report = convert_model(
      {.directory = directory.string(), .output_path = weights.string(), .type = "", .pre_tokenizer = ""},
      nullptr, nullptr);
  EXPECT_EQ(report.status().code(), Code::kInvalidArgument);
  EXPECT_EQ(fs::file_size(weights), bytes);
}

TEST_F(Convert, ReadsShardsByTheIndexAndMissesThemByName) {
  CheckpointForTest checkpoint;
  checkpoint.index = {{"weight_map", nlohmann::ordered_json::object()}};
  for (const auto& [name, entry] : checkpoint.headers["model.safetensors"].items()) {
    checkpoint.index["weight_map"][name] = "model.safetensors";
  }
  const std::string bias = "model.layers.0.self_attn.o_proj.bias";
  checkpoint.add("model-2.safetensors", bias, {64});
  checkpoint.index["weight_map"][bias] = "model-2.safetensors";
  ASSERT_TRUE(convert(checkpoint.write(root_ / "hf")).ok());
  EXPECT_NE(output().find_tensor("blk.0.attn_output.bias"), nullptr);
  fs::remove(root_ / "out.gguf");
  CheckpointForTest less = checkpoint;
  less.headers.erase("model-2.safetensors");
  expect_refused(less, "shard 'model-2.safetensors' is missing");
  less = checkpoint;
  less.index["weight_map"]["model.extra"] = "model-2.safetensors";
  expect_refused(less, "model.extra");
  less.index["weight_map"]["model.extra"] = "../model.safetensors";
  expect_refused(less, "no safetensors file of this directory");
  less.index = {{"weight_map", 7}};
  expect_refused(less, "weight_map");
}

TEST_F(Convert, RefusesDamagedWeightsByWhatIsWrong) {
  using Damage = std::function<void(nlohmann::ordered_json&, std::string&)>;
  const std::string down = "model.layers.0.mlp.down_proj.weight";
  const std::pair<Damage, std::string> kCases[] = {
      {[&](auto& header, auto&) {
         header[down]["shape"] = {64, 97};
       },
       "its offsets hold"},
      {[&](auto& header, auto&) {
         header[down]["shape"] = {96, 64};
       },
       "expected [64, 96] after config.json"},
      {[&](auto& header, auto&) { header[down]["dtype"] = "I32"; }, "dtype I32"},
      {[&](auto& header, auto&) { header[down]["dtype"] = "F64"; }, "takes"},
      {[&](auto& header, auto&) { header[down]["dtype"] = "Q9"; }, "Q9"},
      {[&](auto& header, auto&) {
         header[down]["data_offsets"] = {0, 64 * 96 * 4};
       },
       "overlapping"},
      {[&](auto&, auto& data) { data.resize(data.size() - 1000); }, "truncated"},
      {[&](auto&, auto& data) { data += "more"; }, "belong to no tensor"},
      {[&](auto& header, auto&) {
         header["model.norm.bias"] = header["model.norm.weight"];
         header.erase("model.norm.weight");
       },
       "tensor 'model.norm.weight' is missing"},
  };
  for (const auto& [damage, word] : kCases) {
    CheckpointForTest checkpoint;
    damage(checkpoint.headers["model.safetensors"], checkpoint.data["model.safetensors"]);
    expect_refused(checkpoint, word);
  }
  CheckpointForTest more;
  more.add("model.safetensors", "model.layers.0.self_attn.q_norm.weight", {16});
  expect_refused(more, "'model.layers.0.self_attn.q_norm.weight' is not known");
}

TEST_F(Convert, TakesNamesWithoutTheLeadingModel) {
  CheckpointForTest checkpoint;
  nlohmann::ordered_json& header = checkpoint.headers["model.safetensors"];
  nlohmann::ordered_json shorter;
  for (const auto& [name, entry] : header.items()) {
    shorter[name.rfind("model.", 0) == 0 ? name.substr(6) : name] = entry;
  }
  header = shorter;
  const auto report = convert(checkpoint.write(root_ / "hf"));
  ASSERT_TRUE(report.ok()) << report.status().message();
  EXPECT_EQ(report.value().tensors, 12U);
}

TEST_F(Convert, RefusesWhatCannotBeConvertedByName) {
  using Damage = std::function<void(CheckpointForTest&)>;
  const std::pair<Damage, std::string> kCases[] = {
      {[](auto& c) { c.config["architectures"] = {"MambaForCausalLM"}; }, "MambaForCausalLM"},
      {[](auto& c) { c.config.erase("architectures"); }, "architecture ''"},
      {[](auto& c) { c.config["hidden_act"] = "fatrelu"; }, "fatrelu"},
      {[](auto& c) { c.config["hidden_size"] = -64; }, "hidden_size"},
      {[](auto& c) { c.config.erase("num_hidden_layers"); }, "num_hidden_layers"},
      {[](auto& c) { c.config["num_hidden_layers"] = 2; }, "model.layers.1"},
      {[](auto& c) { c.config["num_attention_heads"] = 5; }, "heads"},
      {[](auto& c) {
         c.config["rope_scaling"] = {{"type", "dynamic"}};
       },
       "dynamic"},
      {[](auto& c) { c.config["partial_rotary_factor"] = 0.5; }, "partial_rotary_factor"},
      {[](auto& c) {
         c.config["quantization_config"] = {{"bits", 4}};
       },
       "quantised already"},
      {[](auto& c) { c.config["rope_theta"] = 0; }, "rope_theta"},
      {[](auto& c) { c.tokenizer["model"]["type"] = "WordPiece"; }, "WordPiece"},
      {[](auto& c) { c.tokenizer["model"].erase("merges"); }, "merges"},
      {[](auto& c) { c.tokenizer["model"]["merges"] = {"th"}; }, "merge 0"},
      {[](auto& c) { c.tokenizer["model"]["vocab"]["th"] = 260; }, "id 260"},
      {[](auto& c) { c.tokenizer["model"]["vocab"]["th"] = 255; }, "both have id 255"},
      {[](auto& c) {
         c.tokenizer["normalizer"] = {{"type", "Lowercase"}};
       },
       "Lowercase"},
      {[](auto& c) { c.tokenizer["pre_tokenizer"]["add_prefix_space"] = true; }, "--pre"},
  };
  for (const auto& [damage, word] : kCases) {
    CheckpointForTest checkpoint;
    damage(checkpoint);
    expect_refused(checkpoint, word);
  }
}

TEST_F(Convert, RefusesMissingAndBrokenFiles) {
  const fs::path directory = CheckpointForTest().write(root_ / "hf");
  const auto refused = [&](const char* word) {
    const auto report = convert(directory);
    ASSERT_FALSE(report.ok());
    EXPECT_EQ(exit_code(report.status().code()), 3) << report.status().message();
    EXPECT_NE(report.status().message().find(word), std::string::npos) << report.status().message();
  };
  fs::resize_file(directory / "tokenizer.json", 100);
  refused("not valid JSON");
  fs::remove(directory / "tokenizer.json");
  refused("tokenizer.json' is missing");
  fs::remove(directory / "model.safetensors");
  refused("no *.safetensors");
  std::ofstream(directory / "pytorch_model.bin") << "x";
  refused("may run code");
  fs::remove(directory / "config.json");
  refused("config.json' is missing");
  EXPECT_EQ(convert(root_ / "nowhere").status().code(), Code::kModelFile);
}

TEST_F(Convert, RefusesValuesThatATypeCannotHold) {
  CheckpointForTest checkpoint;
  const auto& entry = checkpoint.headers["model.safetensors"]["model.layers.0.mlp.up_proj.weight"];
  const size_t at = entry["data_offsets"][0].get<size_t>();
  const auto put = [&](float value) {
    std::memcpy(checkpoint.data["model.safetensors"].data() + at + 40, &value, sizeof value);
    return checkpoint.write(root_ / "hf");
  };
  EXPECT_EQ(convert(put(1e6F), "f16").status().code(), Code::kUnsupported);
  EXPECT_TRUE(convert(put(1e6F), "bf16").ok());
  EXPECT_EQ(convert(put(std::numeric_limits<float>::quiet_NaN()), "q8_0").status().code(), Code::kModelFile);
  EXPECT_EQ(convert(put(std::numeric_limits<float>::infinity()), "q4_0").status().code(), Code::kModelFile);
}

TEST_F(Convert, TurnsSentencePieceMergesIntoScores) {
  CheckpointForTest checkpoint;
  nlohmann::ordered_json vocab = {{"<unk>", 0}, {"</s>", 257}};
  char name[8];
  for (int byte = 0; byte < 256; ++byte) {
    std::snprintf(name, sizeof name, "<0x%02X>", static_cast<unsigned>(byte));
    if (byte > 0) vocab[name] = byte;
  }
  vocab["a"] = 256;
  vocab["b"] = 258;
  vocab["ab"] = 259;
  checkpoint.tokenizer["model"] = {{"type", "BPE"},
                                   {"byte_fallback", true},
                                   {"unk_token", "<unk>"},
                                   {"vocab", vocab},
                                   {"merges", nlohmann::ordered_json::parse(R"([["a", "b"]])")}};
  checkpoint.tokenizer["pre_tokenizer"] = nullptr;
  checkpoint.tokenizer["normalizer"] = {{"type", "Sequence"},
                                        {"normalizers", {{{"type", "Prepend"}, {"prepend", "\u2581"}}}}};
  const auto report = convert(checkpoint.write(root_ / "hf"));
  ASSERT_TRUE(report.ok()) << report.status().message();
  const auto model = output();
  EXPECT_EQ(model.metadata().string_required("tokenizer.ggml.model").value(), "llama");
  EXPECT_TRUE(model.metadata().bool_or("tokenizer.ggml.add_space_prefix", false).value());
  const auto scores = model.metadata().numbers("tokenizer.ggml.scores").value();
  const auto types = model.metadata().numbers("tokenizer.ggml.token_type").value();
  EXPECT_EQ(scores[259], 0);
  EXPECT_LT(scores[256], -1);
  EXPECT_EQ(types[0], 2);
  EXPECT_EQ(types[65], 6);
  EXPECT_EQ(types[257], 3);
  EXPECT_EQ(types[259], 1);
}

TEST_F(Convert, WritesRopeScalingOfBothStyles) {
  const auto number = [&](const char* key) { return output().metadata().float_or(key, -1).value(); };
  CheckpointForTest checkpoint;
  checkpoint.config["rope_theta"] = 500000;
  checkpoint.config["rope_scaling"] = {{"rope_type", "llama3"},
                                       {"factor", 8},
                                       {"low_freq_factor", 1},
                                       {"high_freq_factor", 4},
                                       {"original_max_position_embeddings", 64}};
  ASSERT_TRUE(convert(checkpoint.write(root_ / "hf")).ok());
  EXPECT_EQ(number("llama.rope.freq_base"), 500000);
  const auto factors = floats_of(root_ / "out.gguf", *output().find_tensor("rope_freqs.weight"));
  ASSERT_EQ(factors.size(), 8U);
  EXPECT_EQ(factors[0], 1);
  EXPECT_EQ(factors[7], 8);
  checkpoint.config.erase("rope_theta");
  checkpoint.config.erase("rope_scaling");
  checkpoint.config["rope_parameters"] = {{"rope_theta", 1000}, {"rope_type", "yarn"}, {"factor", 4}};
  ASSERT_TRUE(convert(checkpoint.write(root_ / "hf")).ok());
  EXPECT_EQ(number("llama.rope.freq_base"), 1000);
  EXPECT_EQ(number("llama.rope.scaling.factor"), 4);
  EXPECT_EQ(number("llama.rope.scaling.attn_factor"), 1);
}

TEST_F(Convert, WritesAWindowOnlyWhereItIsShorterThanTheContext) {
  CheckpointForTest checkpoint;
  checkpoint.config["architectures"] = {"MistralForCausalLM"};
  for (const auto& [window, expected] : {std::pair{64, 64}, {256, 0}, {4096, 0}}) {
    checkpoint.config["sliding_window"] = window;
    ASSERT_TRUE(convert(checkpoint.write(root_ / "hf")).ok());
    EXPECT_EQ(output().metadata().uint_or("llama.attention.sliding_window", 0).value(),
              static_cast<uint64_t>(expected));
  }
}

TEST(Quantise, HalvesGoBothWaysWithoutLoss) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const float value = half_to_float(static_cast<uint16_t>(bits));
    if (std::isnan(value)) continue;
    ASSERT_EQ(float_to_half(value), bits) << value;
  }
  EXPECT_EQ(float_to_half(65519.0F), 0x7BFF);
  EXPECT_EQ(float_to_half(65520.0F), 0x7C00);
  EXPECT_EQ(float_to_half(1.0F + 1.0F / 2048), 0x3C00) << "ties to even";
  EXPECT_EQ(float_to_half(1.0F + 3.0F / 2048), 0x3C02);
}

TEST(Quantise, BlocksKeepTheirExtremesAndZero) {
  std::vector<float> in(64, 0);
  for (size_t i = 0; i < 32; ++i) in[i] = static_cast<float>(i) - 16;
  std::vector<uint8_t> q8(2 * 34), q4(2 * 18);
  ASSERT_TRUE(try_from_floats(TensorType::kQ8_0, in, q8.data()));
  ASSERT_TRUE(try_from_floats(TensorType::kQ4_0, in, q4.data()));
  EXPECT_EQ(static_cast<int8_t>(q8[2]), -127);
  EXPECT_EQ(static_cast<int8_t>(q8[2 + 16]), 0);
  EXPECT_EQ(q4[2] & 15, 0) << "the value of largest magnitude is -8 steps";
  EXPECT_EQ(q4[2] >> 4, 8) << "value 16 is zero, which is 8";
  EXPECT_EQ(q4[18 + 2], 0x88) << "a block of zeros";
}

}  // namespace
}  // namespace ganglion::convert

// Families without a Hugging Face fixture: the test writes a directory with the weights of a GGUF fixture,
// under the names and in the layout of published checkpoints, converts it and computes what that fixture's
// reference says. Then what such a config.json can say that is not supported, one refusal by name for each.
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
#include "convert/checkpoint_for_test.h"
#include "format/gguf.h"
#include "ganglion/convert.h"
#include "ganglion/engine.h"
#include "kernels/kernel_table.h"
#include "platform/file.h"

namespace ganglion::convert {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

struct Family {
  const char* fixture;
  const char* architecture;  // in "architectures"
  const char* experts[4];    // folder, gate, up, down
  const char* router;
  const char* activation;  // in the report
};

const Family kFamilies[] = {
    {"smallthinker-f32",
     "SmallThinkerForCausalLM",
     {"block_sparse_moe.", "gate", "up", "down"},
     "block_sparse_moe.primary_router",
     "relu"},
    {"smallthinker-softmax-f32",
     "SmallThinkerForCausalLM",
     {"block_sparse_moe.", "gate", "up", "down"},
     "block_sparse_moe.primary_router",
     "relu"},
    {"qwen3moe-f32",
     "Qwen3MoeForCausalLM",
     {"mlp.", "gate_proj", "up_proj", "down_proj"},
     "mlp.gate",
     "silu"},
    {"mixtral-q8_0",
     "MixtralForCausalLM",
     {"block_sparse_moe.", "w1", "w3", "w2"},
     "block_sparse_moe.gate",
     "silu"},
    {"mistral-bf16", "MistralForCausalLM", {}, "", "silu"},
    {"llama-fatrelu-f32", "SparseLlamaForCausalLM", {}, "", "fatrelu"},
};

void PrintTo(const Family& family, std::ostream* out) {
  *out << family.fixture;
}

std::vector<float> read_floats(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  std::vector<float> out(bytes.size() / sizeof(float));
  std::memcpy(out.data(), bytes.data(), out.size() * sizeof(float));
  return out;
}

// A GGUF fixture as the checkpoint that it could have been made of.
class Unconverted {
 public:
  explicit Unconverted(const Family& family)
      : family_(family),
        path_(fs::path(GANGLION_FIXTURES) / "models" / (std::string(family.fixture) + ".gguf")),
        model_(format::GgufModel::open(path_.string()).take()),
        file_(platform::File::open(path_.string()).take()),
        architecture_(model_.metadata().string_required("general.architecture").value()) {
    checkpoint_.headers.clear();
    checkpoint_.data.clear();
    write_config();
    for (const format::TensorInfo& tensor : model_.tensors()) write(tensor);
  }

  CheckpointForTest take() { return std::move(checkpoint_); }

 private:
  uint64_t number(const char* key) const {
    return model_.metadata().uint_or(architecture_ + "." + key, 0).value();
  }
  double real(const char* key, double fallback) const {
    return model_.metadata().float_or(architecture_ + "." + key, fallback).value();
  }

  void write_config() {
    const uint64_t heads = number("attention.head_count");
    const uint64_t head_dim = number("attention.key_length");
    ordered_json& c = checkpoint_.config;
    c = {{"architectures", {family_.architecture}},
         {"hidden_size", number("embedding_length")},
         {"num_hidden_layers", number("block_count")},
         {"num_attention_heads", heads},
         {"num_key_value_heads", number("attention.head_count_kv")},
         {"head_dim", head_dim > 0 ? head_dim : number("embedding_length") / heads},
         {"max_position_embeddings", number("context_length")},
         {"rms_norm_eps", real("attention.layer_norm_rms_epsilon", 0)},
         {"rope_theta", real("rope.freq_base", 10000)},
         {"rope_scaling", nullptr},
         {"tie_word_embeddings", model_.find_tensor("output.weight") == nullptr},
         {"vocab_size", model_.find_tensor("token_embd.weight")->dims[1]}};
    if (architecture_ == "smallthinker") return write_small_thinker();
    c["hidden_act"] = "silu";
    c["intermediate_size"] = number("feed_forward_length");
    c["sliding_window"] = nullptr;
    c["num_experts_per_tok"] = number("expert_used_count");
    if (architecture_ == "qwen3moe") {
      c["decoder_sparse_step"] = 1;
      c["mlp_only_layers"] = ordered_json::array();
      c["norm_topk_prob"] = true;
      c["num_experts"] = number("expert_count");
      c["moe_intermediate_size"] = number("expert_feed_forward_length");
    } else {
      c["num_local_experts"] = number("expert_count");
    }
    const auto threshold = model_.metadata().float_or("ganglion.ffn.threshold", 0).value();
    if (threshold > 0) {
      c["hidden_act"] = "fatrelu";
      c["hidden_act_param"] = threshold;
    }
  }

  void write_small_thinker() {
    ordered_json& c = checkpoint_.config;
    const bool windows = number("attention.sliding_window") > 0;
    c["model_type"] = "smallthinker";
    c["moe_num_primary_experts"] = number("expert_count");
    c["moe_num_active_primary_experts"] = number("expert_used_count");
    c["moe_ffn_hidden_size"] = number("expert_feed_forward_length");
    c["moe_primary_router_apply_softmax"] = number("expert_gating_func") == 1;
    c["norm_topk_prob"] = true;
    c["sliding_window_size"] = 4096;
    for (uint64_t i = 0; i < number("block_count"); ++i) {
      const int other = i % 4 == 0 ? 0 : 1;
      c["rope_layout"].push_back(windows ? other : 1);
      c["sliding_window_layout"].push_back(windows ? other : 0);
    }
  }

  std::vector<float> floats(const format::TensorInfo& tensor) const {
    std::vector<uint8_t> bytes(tensor.bytes);
    EXPECT_TRUE(file_.read_exact(tensor.offset, bytes).ok());
    std::vector<float> values(tensor.elements());
    kernels::select_table("")->dequantize[static_cast<size_t>(tensor.type)](bytes.data(), values.size(),
                                                                            values.data());
    return values;
  }

  // Name in the checkpoint; of experts: of the last part.
  std::string source_name(const std::string& name) const {
    if (name == "token_embd.weight") return "model.embed_tokens.weight";
    if (name == "output_norm.weight") return "model.norm.weight";
    if (name == "output.weight") return "lm_head.weight";
    const size_t layer = name.find('.') + 1;
    const size_t part = name.find('.', layer) + 1;
    const std::string prefix = "model.layers." + name.substr(layer, part - layer);
    const std::pair<const char*, std::string> kParts[] = {
        {"attn_norm.weight", "input_layernorm"},    {"attn_q.weight", "self_attn.q_proj"},
        {"attn_k.weight", "self_attn.k_proj"},      {"attn_v.weight", "self_attn.v_proj"},
        {"attn_output.weight", "self_attn.o_proj"}, {"attn_q_norm.weight", "self_attn.q_norm"},
        {"attn_k_norm.weight", "self_attn.k_norm"}, {"ffn_norm.weight", "post_attention_layernorm"},
        {"ffn_gate.weight", "mlp.gate_proj"},       {"ffn_up.weight", "mlp.up_proj"},
        {"ffn_down.weight", "mlp.down_proj"},       {"ffn_gate_inp.weight", family_.router},
        {"ffn_gate_exps.weight", expert_part(1)},   {"ffn_up_exps.weight", expert_part(2)},
        {"ffn_down_exps.weight", expert_part(3)}};
    for (const auto& [from, to] : kParts) {
      if (name.compare(part, std::string::npos, from) == 0) return prefix + to + ".weight";
    }
    ADD_FAILURE() << "no name for " << name;
    return name;
  }
  // '*' stands for the expert.
  std::string expert_part(size_t i) const {
    return family_.experts[i] == nullptr
               ? ""
               : std::string(family_.experts[0]) + "experts.*." + family_.experts[i];
  }

  void write(const format::TensorInfo& tensor) {
    std::vector<float> values = floats(tensor);
    std::vector<uint64_t> shape = {tensor.dims[0]};
    if (tensor.dim_count > 1) shape.insert(shape.begin(), tensor.dims[1]);
    const std::string name = source_name(tensor.name);
    const bool query = name.find("q_proj") != std::string::npos;
    if (architecture_ == "llama" && (query || name.find("k_proj") != std::string::npos)) {
      const uint64_t heads = number(query ? "attention.head_count" : "attention.head_count_kv");
      values = halves(values, tensor.dims[1] / heads, tensor.dims[0]);
    }
    const size_t star = name.find('*');
    if (star == std::string::npos) return checkpoint_.add_floats(name, shape, values);
    const size_t each = tensor.dims[0] * tensor.dims[1];
    for (uint64_t e = 0; e < tensor.dims[2]; ++e) {
      const auto begin = values.begin() + static_cast<std::ptrdiff_t>(e * each);
      checkpoint_.add_floats(name.substr(0, star) + std::to_string(e) + name.substr(star + 1), shape,
                             {begin, begin + static_cast<std::ptrdiff_t>(each)});
    }
  }

  // Rows 2i and 2i + 1 of each head become rows i and i + rows/2.
  static std::vector<float> halves(const std::vector<float>& in, uint64_t head_rows, uint64_t cols) {
    std::vector<float> out(in.size());
    for (uint64_t row = 0; row < in.size() / cols; ++row) {
      const uint64_t at = row % head_rows;
      const uint64_t to = row - at + at / 2 + (at % 2) * (head_rows / 2);
      std::copy_n(in.begin() + static_cast<std::ptrdiff_t>(row * cols), cols,
                  out.begin() + static_cast<std::ptrdiff_t>(to * cols));
    }
    return out;
  }

  const Family& family_;
  fs::path path_;
  format::GgufModel model_;
  platform::File file_;
  std::string architecture_;
  CheckpointForTest checkpoint_;
};

class ConvertFamily : public ::testing::TestWithParam<Family> {
 protected:
  void SetUp() override {
    root_ = fs::temp_directory_path() / ("convert-families-" + std::to_string(::getpid()));
    fs::create_directories(root_);
  }
  void TearDown() override { fs::remove_all(root_); }

  std::string output() const { return (root_ / "out.gguf").string(); }
  Result<ConvertReport> convert(const CheckpointForTest& checkpoint, const std::string& type = "") {
    return convert_model({.directory = checkpoint.write(root_ / "hf").string(),
                          .output_path = output(),
                          .type = type,
                          .pre_tokenizer = ""},
                         nullptr, nullptr);
  }

  static fs::path fixture(const std::string& name, const char* extension) {
    return fs::path(GANGLION_FIXTURES) / "models" / (name + extension);
  }
  static ordered_json facts(const std::string& name) {
    std::ifstream in(fixture(name, ".json"));
    return ordered_json::parse(in)["long"];
  }

  static std::vector<std::vector<float>> logits(const std::string& path, const std::vector<int32_t>& tokens,
                                                const Overrides& overrides = {}) {
    EngineOptions options;
    options.model_path = path;
    options.memory = "1G";
    options.kv_type = "f32";
    options.threads = 1;
    options.logit_rows = 8;
    options.overrides = overrides;
    auto engine = Engine::open(options);
    EXPECT_TRUE(engine.ok()) << engine.status().message();
    if (!engine.ok()) return {};
    EXPECT_TRUE(engine.value()->load(nullptr, nullptr).ok());
    convert::AllLogits all;
    const Status status = engine.value()->new_session().take()->evaluate(tokens, nullptr, &all);
    EXPECT_TRUE(status.ok()) << status.message();
    return all.rows;
  }

  void expect_refused(const CheckpointForTest& checkpoint, const std::string& word) {
    const auto report = convert(checkpoint);
    ASSERT_FALSE(report.ok()) << word;
    EXPECT_EQ(exit_code(report.status().code()), 3) << report.status().message();
    EXPECT_NE(report.status().message().find(word), std::string::npos) << report.status().message();
    EXPECT_EQ(report.status().message().find('\n'), std::string::npos);
    EXPECT_FALSE(fs::exists(output()));
  }

  fs::path root_;
};

TEST_P(ConvertFamily, ComputesWhatTheReferenceSays) {
  const Family& family = GetParam();
  const auto report = convert(Unconverted(family).take());
  ASSERT_TRUE(report.ok()) << report.status().message();
  EXPECT_EQ(report.value().activation, family.activation);
  EXPECT_TRUE(report.value().skipped.empty());
  const ordered_json golden = facts(family.fixture);
  const auto all = logits(output(), golden["tokens"].get<std::vector<int32_t>>());
  const auto expected = read_floats(fixture(golden["logits_file"].get<std::string>(), ""));
  const size_t vocab = golden["logits_shape"][1];
  double worst = 0;
  size_t at = 0;
  for (const size_t position : golden["positions"].get<std::vector<size_t>>()) {
    ASSERT_GT(all.size(), position);
    ASSERT_EQ(all[position].size(), vocab);
    for (const float logit : all[position])
      worst = std::max(worst, std::abs(static_cast<double>(logit) - static_cast<double>(expected[at++])));
  }
  EXPECT_EQ(at, expected.size());
  EXPECT_LE(worst, 1e-4);
}

TEST_P(ConvertFamily, QuantisesMatricesAndKeepsRoutersFloat) {
  ASSERT_TRUE(convert(Unconverted(GetParam()).take(), "q8_0").ok());
  const auto model = format::GgufModel::open(output()).take();
  const bool experts = GetParam().experts[0] != nullptr;
  const auto* down = model.find_tensor(experts ? "blk.1.ffn_down_exps.weight" : "blk.1.ffn_down.weight");
  ASSERT_NE(down, nullptr);
  const bool divides = down->dims[0] % 32 == 0;
  EXPECT_EQ(down->type, divides ? base::TensorType::kQ8_0 : base::TensorType::kF16);
  EXPECT_EQ(model.find_tensor("blk.1.attn_q.weight")->type, base::TensorType::kQ8_0);
  if (experts) {
    EXPECT_EQ(model.find_tensor("blk.1.ffn_gate_inp.weight")->type, base::TensorType::kF32);
  }
}

TEST_P(ConvertFamily, MissingExpertsAndLayersAreNamed) {
  CheckpointForTest checkpoint = Unconverted(GetParam()).take();
  checkpoint.config["num_hidden_layers"] = checkpoint.config["num_hidden_layers"].get<int>() + 1;
  for (const char* layout : {"rope_layout", "sliding_window_layout"}) {
    if (checkpoint.config.contains(layout)) checkpoint.config[layout].push_back(checkpoint.config[layout][1]);
  }
  expect_refused(checkpoint, "' is missing");
  if (GetParam().experts[0] == nullptr) return;
  checkpoint = Unconverted(GetParam()).take();
  const std::string name = std::string("model.layers.1.") + GetParam().experts[0] + "experts.1." +
                           GetParam().experts[3] + ".weight";
  ASSERT_TRUE(checkpoint.headers["model.safetensors"].contains(name));
  checkpoint.headers["model.safetensors"][name]["shape"] = {32, 32};
  expect_refused(checkpoint, "'" + name + "'");
}

INSTANTIATE_TEST_SUITE_P(Fixtures, ConvertFamily, ::testing::ValuesIn(kFamilies), [](const auto& test) {
  std::string name = test.param.fixture;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

using Damage = std::function<void(ordered_json&)>;

class ConvertFamilies : public ConvertFamily {
 protected:
  void expect_all_refused(const Family& family, const std::vector<std::pair<Damage, std::string>>& cases) {
    const CheckpointForTest intact = Unconverted(family).take();
    for (const auto& [damage, word] : cases) {
      CheckpointForTest checkpoint = intact;
      damage(checkpoint.config);
      expect_refused(checkpoint, word);
    }
  }
};

// The fixture has none: the engine's own override of the key says what a window does.
TEST_F(ConvertFamilies, MistralsSlidingWindowIsComputedWith) {
  const Family& mistral = kFamilies[4];
  CheckpointForTest checkpoint = Unconverted(mistral).take();
  checkpoint.config["sliding_window"] = 8;
  ASSERT_TRUE(convert(checkpoint).ok());
  const auto tokens = facts(mistral.fixture)["tokens"].get<std::vector<int32_t>>();
  const auto windowed = logits(output(), tokens);
  checkpoint.config["sliding_window"] = nullptr;
  ASSERT_TRUE(convert(checkpoint).ok());
  const auto whole = logits(output(), tokens);
  const auto overridden = logits(output(), tokens, {{"llama.attention.sliding_window", "8"}});
  EXPECT_EQ(windowed, overridden);
  EXPECT_EQ(windowed[7], whole[7]);
  EXPECT_NE(windowed.back(), whole.back());
}

TEST_F(ConvertFamilies, ProSparseThresholdIsWrittenAndHasToBeThere) {
  const Family& prosparse = kFamilies[5];
  CheckpointForTest checkpoint = Unconverted(prosparse).take();
  checkpoint.config["architectures"] = {"LlamaForCausalLM"};
  ASSERT_TRUE(convert(checkpoint).ok());
  auto model = format::GgufModel::open(output()).take();
  EXPECT_EQ(model.metadata().string_required("ganglion.ffn.activation").value(), "relu");
  EXPECT_FLOAT_EQ(static_cast<float>(model.metadata().float_or("ganglion.ffn.threshold", 0).value()), 0.4F);
  checkpoint.config["hidden_act"] = "relu";  // hidden_act_param means nothing then.
  const auto report = convert(checkpoint);
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(report.value().activation, "relu");
  model = format::GgufModel::open(output()).take();
  EXPECT_FALSE(model.metadata().has("ganglion.ffn.threshold"));
  fs::remove(output());
  expect_all_refused(prosparse, {
                                    {[](auto& c) { c.erase("hidden_act_param"); }, "hidden_act_param"},
                                    {[](auto& c) { c["hidden_act_param"] = -0.01; }, "hidden_act_param"},
                                    {[](auto& c) { c["hidden_act_param"] = "0.01"; }, "hidden_act_param"},
                                    {[](auto& c) { c["hidden_act"] = "shiftrelu"; }, "shiftrelu"},
                                    {[](auto& c) { c["hidden_act"] = "silu"; }, "expected relu or fatrelu"},
                                    {[](auto& c) { c.erase("hidden_act"); }, "hidden_act"},
                                });
}

TEST_F(ConvertFamilies, Qwen3MoeRefusesWhatTheArchitectureHasNot) {
  expect_all_refused(kFamilies[2],
                     {
                         {[](auto& c) { c["decoder_sparse_step"] = 2; }, "decoder_sparse_step"},
                         {[](auto& c) { c["mlp_only_layers"] = {0}; }, "mlp_only_layers"},
                         {[](auto& c) { c["norm_topk_prob"] = false; }, "norm_topk_prob"},
                         {[](auto& c) { c.erase("norm_topk_prob"); }, "norm_topk_prob"},
                         {[](auto& c) { c["hidden_act"] = "relu"; }, "expected silu"},
                         {[](auto& c) { c["num_experts_per_tok"] = 17; }, "num_experts_per_tok"},
                         {[](auto& c) { c["num_experts"] = 4096; }, "expected [4096, 64]"},
                         {[](auto& c) { c.erase("moe_intermediate_size"); }, "moe_intermediate_size"},
                         {[](auto& c) {
                            c["use_sliding_window"] = true;
                            c["sliding_window"] = 64;
                          },
                          "use_sliding_window"},
                     });
}

TEST_F(ConvertFamilies, SmallThinkerRefusesWhatTheArchitectureHasNot) {
  const std::string layouts = "'rope_layout' and 'sliding_window_layout'";
  const std::vector<std::pair<Damage, std::string>> cases = {
      {[](auto& c) { c["rope_layout"][1] = 0; }, layouts},
      {[](auto& c) { c["rope_layout"].push_back(1); }, layouts},
      {[](auto& c) { c["sliding_window_layout"][0] = 1; }, layouts},
      {[](auto& c) { c["sliding_window_layout"][1] = 2; }, layouts},
      {[](auto& c) { c.erase("rope_layout"); }, layouts},
      {[](auto& c) { c["sliding_window_layout"] = "none"; }, layouts},
      {[](auto& c) { c.erase("sliding_window_size"); }, "sliding_window_size"},
      {[](auto& c) { c["hidden_act"] = "silu"; }, "expected 'relu'"},
      {[](auto& c) { c["moe_enable_early_router"] = false; }, "moe_enable_early_router"},
      {[](auto& c) { c["moe_enable_secondary_experts"] = true; }, "moe_enable_secondary_experts"},
      {[](auto& c) { c["moe_shared_primary_experts"] = 1; }, "moe_shared_primary_experts"},
      {[](auto& c) {
         c["moe_layer_layout"] = {1, 1, 0, 1, 1};
       },
       "moe_layer_layout"},
      {[](auto& c) { c["use_qk_norm"] = true; }, "use_qk_norm"},
      {[](auto& c) { c["moe_num_active_primary_experts"] = 6; }, "moe_num_active_primary_experts"},
      {[](auto& c) { c.erase("moe_num_primary_experts"); }, "moe_num_primary_experts"},
  };
  expect_all_refused(kFamilies[0], cases);
}

// What config.json leaves out is as the published configuration class has it.
TEST_F(ConvertFamilies, SmallThinkerWithoutLayoutsHasRopeEverywhereAndTiedEmbeddings) {
  const Family& softmax = kFamilies[1];
  CheckpointForTest checkpoint = Unconverted(softmax).take();
  for (const char* field :
       {"rope_layout", "sliding_window_layout", "sliding_window_size", "tie_word_embeddings"})
    checkpoint.config.erase(field);
  ASSERT_TRUE(convert(checkpoint).ok());
  const auto tokens = facts(softmax.fixture)["tokens"].get<std::vector<int32_t>>();
  EXPECT_EQ(logits(output(), tokens), logits(fixture(softmax.fixture, ".gguf").string(), tokens));
}

}  // namespace
}  // namespace ganglion::convert

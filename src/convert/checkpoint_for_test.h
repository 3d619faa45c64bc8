// A tiny Hugging Face directory for tests, written value by value, so that tests can damage it anywhere.
#pragma once

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace ganglion::convert {

/// Files of a Llama with one layer, 4 heads, 2 key-value heads, and a vocabulary of the 256 bytes and two
/// more tokens; pseudo-random weights in F32.
struct CheckpointForTest {
  nlohmann::ordered_json config, tokenizer, tokenizer_config;
  std::map<std::string, nlohmann::ordered_json> headers;  ///< By file.
  std::map<std::string, std::string> data;                ///< Likewise.
  nlohmann::ordered_json index;                           ///< Null: none.

  CheckpointForTest();
  void add(const std::string& file, const std::string& name, const std::vector<uint64_t>& shape);
  void add_floats(const std::string& name, const std::vector<uint64_t>& shape,
                  const std::vector<float>& values);
  /// Writes all into a new directory.
  std::filesystem::path write(const std::filesystem::path& directory) const;
};

inline std::string byte_alphabet(int byte) {
  // GPT-2's: printable bytes stand for themselves, the others for U+0100 and on.
  const auto printable = [](int b) { return (b > 32 && b < 127) || (b > 160 && b != 173); };
  int code = byte;
  if (!printable(byte)) {
    code = 256;
    for (int b = 0; b < byte; ++b) code += printable(b) ? 0 : 1;
  }
  if (code < 128) return std::string(1, static_cast<char>(code));
  return {static_cast<char>(0xC0 | code >> 6), static_cast<char>(0x80 | (code & 63))};
}

inline void CheckpointForTest::add(const std::string& file, const std::string& name,
                                   const std::vector<uint64_t>& shape) {
  uint64_t count = 1;
  for (const uint64_t dim : shape) count *= dim;
  std::string& bytes = data[file];
  const uint64_t begin = bytes.size();
  uint32_t state = static_cast<uint32_t>(begin) + 12345;
  for (uint64_t i = 0; i < count; ++i) {
    state = state * 1664525 + 1013904223;
    const float value = shape.size() == 1 ? 1.0F : static_cast<float>(state >> 8) / 8388608.0F * 0.2F - 0.2F;
    bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  headers[file][name] = {{"dtype", "F32"}, {"shape", shape}, {"data_offsets", {begin, bytes.size()}}};
}

inline void CheckpointForTest::add_floats(const std::string& name, const std::vector<uint64_t>& shape,
                                          const std::vector<float>& values) {
  std::string& bytes = data["model.safetensors"];
  const uint64_t begin = bytes.size();
  bytes.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
  headers["model.safetensors"][name] = {
      {"dtype", "F32"}, {"shape", shape}, {"data_offsets", {begin, bytes.size()}}};
}

inline CheckpointForTest::CheckpointForTest() {
  config = {{"architectures", {"LlamaForCausalLM"}},
            {"hidden_act", "silu"},
            {"hidden_size", 64},
            {"intermediate_size", 96},
            {"num_hidden_layers", 1},
            {"num_attention_heads", 4},
            {"num_key_value_heads", 2},
            {"max_position_embeddings", 256},
            {"rms_norm_eps", 1e-5},
            {"vocab_size", 260}};
  nlohmann::ordered_json vocab;
  for (int byte = 0; byte < 256; ++byte) vocab[byte_alphabet(byte)] = byte;
  vocab["th"] = 256;
  tokenizer = {{"added_tokens", {{{"id", 257}, {"content", "</s>"}, {"special", true}}}},
               {"normalizer", nullptr},
               {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}}},
               {"post_processor", nullptr},
               {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", {"t h"}}}}};
  tokenizer_config = {{"eos_token", "</s>"}, {"bos_token", nullptr}};
  const std::string file = "model.safetensors";
  add(file, "model.embed_tokens.weight", {260, 64});
  const std::string layer = "model.layers.0.";
  add(file, layer + "input_layernorm.weight", {64});
  add(file, layer + "self_attn.q_proj.weight", {64, 64});
  add(file, layer + "self_attn.k_proj.weight", {32, 64});
  add(file, layer + "self_attn.v_proj.weight", {32, 64});
  add(file, layer + "self_attn.o_proj.weight", {64, 64});
  add(file, layer + "post_attention_layernorm.weight", {64});
  add(file, layer + "mlp.gate_proj.weight", {96, 64});
  add(file, layer + "mlp.up_proj.weight", {96, 64});
  add(file, layer + "mlp.down_proj.weight", {64, 96});
  add(file, "model.norm.weight", {64});
  add(file, "lm_head.weight", {260, 64});
}

inline std::filesystem::path CheckpointForTest::write(const std::filesystem::path& directory) const {
  std::filesystem::remove_all(directory);
  std::filesystem::create_directories(directory);
  const auto put = [&](const std::string& name, const std::string& text) {
    std::ofstream(directory / name, std::ios::binary) << text;
  };
  put("config.json", config.dump());
  put("tokenizer.json", tokenizer.dump());
  put("tokenizer_config.json", tokenizer_config.dump());
  if (!index.is_null()) put("model.safetensors.index.json", index.dump());
  for (const auto& [name, header] : headers) {
    const std::string text = header.dump();
    const uint64_t length = text.size();
    put(name, std::string(reinterpret_cast<const char*>(&length), sizeof length) + text + data.at(name));
  }
  return directory;
}

}  // namespace ganglion::convert

// What the files in families/ share: reading common keys, and the list of families.
#pragma once

#include "model_config/model_config.h"

namespace ganglion::model_config {

/// Keys of one architecture: `key("block_count")` is "<arch>.block_count". Remembers the first error, so that
/// a family reads top to bottom and is checked once at its end.
class KeyReader {
 public:
  KeyReader(const base::Metadata& metadata, std::string architecture)
      : metadata_(metadata), architecture_(std::move(architecture)) {}

  const base::Metadata& metadata() const { return metadata_; }
  std::string key(const std::string& name) const { return architecture_ + "." + name; }
  bool has(const std::string& name) const { return metadata_.has(key(name)); }

  /// A required count in [1, limit].
  uint32_t count(const std::string& name, uint64_t limit);
  uint32_t count_or(const std::string& name, uint64_t fallback, uint64_t limit);
  float number_or(const std::string& name, double fallback);
  bool flag_or(const std::string& name, bool fallback);
  std::string text_or(const std::string& name, const std::string& fallback);
  /// One count per layer, from an array or a single number.
  std::vector<uint32_t> per_layer(const std::string& name, size_t layers, uint64_t limit);

  void fail(base::Code code, const std::string& message);
  const base::Status& status() const { return status_; }

 private:
  uint32_t bounded(const std::string& name, uint64_t value, uint64_t least, uint64_t limit);

  const base::Metadata& metadata_;
  std::string architecture_;
  base::Status status_;
};

/// The keys that every family has: sizes, heads, norms, rope with its scaling, experts.
void read_common(KeyReader& keys, ModelConfig* config);

/// `ganglion.ffn.activation`, the string key of ReLU variants of a SwiGLU family, dense or with experts: silu
/// (or no key), relu (gate rectified) or drelu (gate and up rectified); and `ganglion.ffn.threshold`, the
/// number that a relu's gate has to exceed (FATReLU, ProSparse). Fails with kUnsupported for others.
void read_rectified_activation(KeyReader& keys, ModelConfig* config);

using FamilyReader = void (*)(KeyReader& keys, ModelConfig* config);
void read_llama(KeyReader& keys, ModelConfig* config);
void read_bamboo(KeyReader& keys, ModelConfig* config);
void read_qwen2(KeyReader& keys, ModelConfig* config);
void read_qwen3(KeyReader& keys, ModelConfig* config);
void read_qwen3moe(KeyReader& keys, ModelConfig* config);
void read_gemma2(KeyReader& keys, ModelConfig* config);
void read_gemma3(KeyReader& keys, ModelConfig* config);
void read_gpt_oss(KeyReader& keys, ModelConfig* config);
void read_opt(KeyReader& keys, ModelConfig* config);
void read_olmoe(KeyReader& keys, ModelConfig* config);
void read_phi3(KeyReader& keys, ModelConfig* config);
void read_granite(KeyReader& keys, ModelConfig* config);
void read_glm4moe(KeyReader& keys, ModelConfig* config);
void read_deepseek2(KeyReader& keys, ModelConfig* config);
void read_smallthinker(KeyReader& keys, ModelConfig* config);

}  // namespace ganglion::model_config

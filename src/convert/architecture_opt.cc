// OPT: layer norms and biases everywhere, learned positions, an FFN without a gate. GGUF has no names of its
// own for it: keys and tensors here follow those of the other architectures.
#include "convert/architecture.h"
#include "convert/config_reader.h"

namespace ganglion::convert {

using base::Code;
using base::Result;
using format::GgufWriter;
using format::Json;

namespace {

constexpr uint64_t kMaxDim = 1U << 20;
constexpr uint64_t kMaxLayers = 4096;
constexpr uint64_t kMaxHeads = 4096;
constexpr uint64_t kMaxContext = 1U << 20;
constexpr uint64_t kMaxVocab = 1U << 24;
// The position table begins with rows that no position uses.
constexpr uint64_t kPositionOffset = 2;

struct Sizes {
  uint64_t dim, ffn, layers, heads, context, vocab;
};

Sizes read_sizes(ConfigReader& config) {
  const Sizes s = {.dim = config.count("hidden_size", kMaxDim),
                   .ffn = config.count("ffn_dim", kMaxDim),
                   .layers = config.count("num_hidden_layers", kMaxLayers),
                   .heads = config.count("num_attention_heads", kMaxHeads),
                   .context = config.count("max_position_embeddings", kMaxContext),
                   .vocab = config.count("vocab_size", kMaxVocab)};
  config.expect_text("activation_function", "relu");
  config.expect_flag("do_layer_norm_before", true);
  config.expect_flag("_remove_final_layer_norm", false);
  config.expect_flag("enable_bias", true);
  config.expect_flag("layer_norm_elementwise_affine", true);
  if (config.count_or("word_embed_proj_dim", s.dim, kMaxDim) != s.dim) {
    config.fail(Code::kUnsupported, "'word_embed_proj_dim' is not 'hidden_size', which is not supported");
  }
  if (s.dim % s.heads != 0 || s.dim / s.heads % 2 != 0) {
    config.fail(Code::kModelFile, "'hidden_size' is no even multiple of 'num_attention_heads'");
  }
  return s;
}

void write_keys(const Sizes& s, GgufWriter* writer) {
  const std::pair<const char*, uint64_t> keys[] = {
      {"opt.vocab_size", s.vocab},        {"opt.context_length", s.context},
      {"opt.embedding_length", s.dim},    {"opt.block_count", s.layers},
      {"opt.feed_forward_length", s.ffn}, {"opt.attention.head_count", s.heads}};
  writer->add_string("general.architecture", "opt");
  for (const auto& [key, value] : keys) writer->add_uint(key, static_cast<uint32_t>(value));
  writer->add_float("opt.attention.layer_norm_epsilon", 1e-5F);
  writer->add_string("ganglion.ffn.activation", "relu");
}

}  // namespace

Result<ModelPlan> plan_opt(const Json& json, const std::string& path, GgufWriter* writer) {
  ConfigReader config(json, path);
  const Sizes s = read_sizes(config);
  if (!config.status().ok()) return config.status();
  write_keys(s, writer);
  ModelPlan plan{.architecture = "opt",
                 .activation = "relu",
                 .vocab = s.vocab,
                 .tied = config["tie_word_embeddings"].bool_or(true),
                 .tensors = {}};
  const auto add = [&](const std::string& to, const std::string& from,
                       const std::vector<uint64_t>& shape) -> PlannedTensor& {
    plan.tensors.push_back({.name = to, .sources = {from}, .shape = shape});
    return plan.tensors.back();
  };
  // A matrix or norm with its bias.
  const auto add_both = [&](const std::string& to, const std::string& from,
                            const std::vector<uint64_t>& shape) {
    add(to + ".weight", from + ".weight", shape);
    add(to + ".bias", from + ".bias", {shape[0]});
  };
  const std::string decoder = "model.decoder.";
  add("token_embd.weight", decoder + "embed_tokens.weight", {s.vocab, s.dim}).is_embedding = true;
  PlannedTensor& positions =
      add("position_embd.weight", decoder + "embed_positions.weight", {s.context + kPositionOffset, s.dim});
  positions.skip_rows = kPositionOffset;
  positions.is_small = true;
  for (uint64_t i = 0; i < s.layers; ++i) {
    const std::string from = decoder + "layers." + std::to_string(i) + ".";
    const std::string to = "blk." + std::to_string(i) + ".";
    add_both(to + "attn_norm", from + "self_attn_layer_norm", {s.dim});
    add_both(to + "attn_q", from + "self_attn.q_proj", {s.dim, s.dim});
    add_both(to + "attn_k", from + "self_attn.k_proj", {s.dim, s.dim});
    add_both(to + "attn_v", from + "self_attn.v_proj", {s.dim, s.dim});
    add_both(to + "attn_output", from + "self_attn.out_proj", {s.dim, s.dim});
    add_both(to + "ffn_norm", from + "final_layer_norm", {s.dim});
    add_both(to + "ffn_up", from + "fc1", {s.ffn, s.dim});
    add_both(to + "ffn_down", from + "fc2", {s.dim, s.ffn});
  }
  add_both("output_norm", decoder + "final_layer_norm", {s.dim});
  if (!plan.tied) add("output.weight", "lm_head.weight", {s.vocab, s.dim}).is_embedding = true;
  return plan;
}

}  // namespace ganglion::convert

#include "convert/architecture.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/units.h"
#include "convert/config_reader.h"

namespace ganglion::convert {

using base::Code;
using base::Result;
using base::Status;
using format::GgufWriter;
using format::Json;

namespace {

constexpr uint64_t kMaxDim = 1U << 20;
constexpr uint64_t kMaxLayers = 4096;
constexpr uint64_t kMaxHeads = 4096;
constexpr uint64_t kMaxHeadDim = 4096;
constexpr uint64_t kMaxContext = 1U << 28;
constexpr uint64_t kMaxVocab = 1U << 24;
constexpr uint64_t kMaxExperts = 4096;
constexpr uint64_t kMaxExpertTensors = 1U << 17;

// The experts of a layer in the checkpoint, and the fields of config.json that count them.
struct ExpertNames {
  const char* folder;  // in the layer
  const char* router;
  const char* parts[3];  // gate, up, down
  const char* count;
  const char* used;
  const char* ffn;
};
constexpr ExpertNames kMixtralExperts = {
    .folder = "block_sparse_moe.",
    .router = "gate",
    .parts = {"w1", "w3", "w2"},
    .count = "num_local_experts",
    .used = "num_experts_per_tok",
    .ffn = "intermediate_size",
};
constexpr ExpertNames kQwenExperts = {
    .folder = "mlp.",
    .router = "gate",
    .parts = {"gate_proj", "up_proj", "down_proj"},
    .count = "num_experts",
    .used = "num_experts_per_tok",
    .ffn = "moe_intermediate_size",
};
constexpr ExpertNames kSmallThinkerExperts = {
    .folder = "block_sparse_moe.",
    .router = "primary_router",
    .parts = {"gate", "up", "down"},
    .count = "moe_num_primary_experts",
    .used = "moe_num_active_primary_experts",
    .ffn = "moe_ffn_hidden_size",
};

enum class Family : uint8_t { kLlama, kQwen, kSmallThinker };

struct Architecture {
  const char* name;  // in "architectures"
  const char* gguf;
  Family family = Family::kLlama;        // kLlama: query and key rows are interleaved, a window has a key
  const ExpertNames* experts = nullptr;  // null: a dense FFN
  bool drelu = false;                    // gate and up are rectified, though hidden_act says "relu"
  bool sparse = false;                   // rectified in any case: not SiLU
  bool qkv_biases = false;               // always there
  bool head_norms = false;               // on queries and keys
  bool tied = false;                     // where the config does not say

  bool is_llama() const { return family == Family::kLlama; }
};
// Source of the dReLU rows: the released models compute down(relu(gate) * relu(up)).
constexpr Architecture kArchitectures[] = {
    {.name = "LlamaForCausalLM", .gguf = "llama"},
    {.name = "MistralForCausalLM", .gguf = "llama"},
    {.name = "MixtralForCausalLM", .gguf = "llama", .experts = &kMixtralExperts},
    {.name = "SparseLlamaForCausalLM", .gguf = "llama", .sparse = true},  // ProSparse
    {.name = "BambooForCausalLM", .gguf = "llama", .drelu = true},
    {.name = "TurboSparseMixtralForCausalLM", .gguf = "llama", .experts = &kMixtralExperts, .drelu = true},
    {.name = "Qwen2ForCausalLM", .gguf = "qwen2", .family = Family::kQwen, .qkv_biases = true},
    {.name = "Qwen3ForCausalLM", .gguf = "qwen3", .family = Family::kQwen, .head_norms = true},
    {.name = "Qwen3MoeForCausalLM",
     .gguf = "qwen3moe",
     .family = Family::kQwen,
     .experts = &kQwenExperts,
     .head_norms = true},
    {.name = "SmallThinkerForCausalLM",
     .gguf = "smallthinker",
     .family = Family::kSmallThinker,
     .experts = &kSmallThinkerExperts,
     .tied = true},
};

struct Sizes {
  uint64_t dim = 0, ffn = 0, layers = 0, heads = 0, kv_heads = 0, head_dim = 0, context = 0;
  uint64_t experts = 0, expert_ffn = 0;
};

class Planner {
 public:
  Planner(const Architecture& architecture, const Json& config, const std::string& path, GgufWriter* writer)
      : a_(architecture), config_(config, path), writer_(writer) {}

  Result<ModelPlan> run() {
    plan_.architecture = a_.gguf;
    writer_->add_string("general.architecture", a_.gguf);
    read_sizes();
    read_activation();
    read_rope();
    if (!config_.status().ok()) return config_.status();
    write_sizes();
    tensors();
    return std::move(plan_);
  }

 private:
  std::string key(const char* name) const { return std::string(a_.gguf) + "." + name; }
  void put(const char* name, uint64_t value) { writer_->add_uint(key(name), static_cast<uint32_t>(value)); }

  void read_sizes();
  void read_experts();
  void check_qwen_experts();
  void check_small_thinker();
  void read_window();
  void read_layouts();
  bool is_layout(const char* field, uint64_t fallback, uint64_t at_fourth, uint64_t elsewhere) const;
  void read_activation();
  void read_rope();
  void llama3_rope(const Json& rope, double base);
  void write_sizes();
  void tensors();
  void attention_tensors(const std::string& from, const std::string& to);
  void ffn_tensors(const std::string& from, const std::string& to);
  void expert_tensors(const std::string& from, const std::string& to);
  PlannedTensor& add(std::string name, std::string source, std::vector<uint64_t> shape) {
    plan_.tensors.push_back({std::move(name), {std::move(source)}, std::move(shape)});
    return plan_.tensors.back();
  }

  const Architecture& a_;
  ConfigReader config_;
  GgufWriter* writer_;
  Sizes s_;
  ModelPlan plan_;
};

void Planner::read_sizes() {
  s_.dim = config_.count("hidden_size", kMaxDim);
  const bool only_experts = a_.family == Family::kSmallThinker;
  s_.ffn = config_.count(only_experts ? a_.experts->ffn : "intermediate_size", kMaxDim);
  s_.layers = config_.count("num_hidden_layers", kMaxLayers);
  s_.heads = config_.count("num_attention_heads", kMaxHeads);
  s_.kv_heads = config_.count_or("num_key_value_heads", s_.heads, kMaxHeads);
  s_.head_dim = config_.count_or("head_dim", s_.dim / s_.heads, kMaxHeadDim);
  s_.context = config_.count("max_position_embeddings", kMaxContext);
  plan_.vocab = config_.count("vocab_size", kMaxVocab);
  plan_.tied = config_["tie_word_embeddings"].bool_or(a_.tied);
  if (s_.heads % s_.kv_heads != 0 || s_.head_dim == 0 || s_.head_dim % 2 != 0) {
    config_.fail(
        Code::kModelFile,
        base::format("%llu heads of %llu elements with %llu key-value heads make no "
                     "sense (num_attention_heads, head_dim, num_key_value_heads)",
                     static_cast<unsigned long long>(s_.heads), static_cast<unsigned long long>(s_.head_dim),
                     static_cast<unsigned long long>(s_.kv_heads)));
  }
  if (a_.experts != nullptr) read_experts();
  if (!config_["quantization_config"].is_null()) {
    config_.fail(Code::kUnsupported,
                 "the weights are quantised already (quantization_config) - get the "
                 "original model");
  }
  read_window();
}

void Planner::read_experts() {
  s_.experts = config_.count(a_.experts->count, kMaxExperts);
  s_.expert_ffn = config_.count(a_.experts->ffn, kMaxDim);
  if (s_.experts * s_.layers > kMaxExpertTensors) {
    config_.fail(Code::kModelFile, "'" + std::string(a_.experts->count) +
                                       "' times 'num_hidden_layers' is more than any model has");
    s_.experts = 1;
  }
  put("expert_count", s_.experts);
  put("expert_used_count", config_.count(a_.experts->used, s_.experts));
  if (!a_.is_llama()) put("expert_feed_forward_length", s_.expert_ffn);
  if (a_.family == Family::kQwen) check_qwen_experts();
  if (a_.family == Family::kSmallThinker) check_small_thinker();
}

// The GGUF architecture has experts in every layer, whose weights are divided by their sum.
void Planner::check_qwen_experts() {
  if (config_.count_or("decoder_sparse_step", 1, kMaxLayers) != 1 ||
      !config_["mlp_only_layers"].items().empty()) {
    config_.fail(Code::kUnsupported,
                 "'decoder_sparse_step' or 'mlp_only_layers' says that some layers have no experts, which is "
                 "not supported");
  }
  if (!config_["norm_topk_prob"].bool_or(false))
    config_.fail(Code::kUnsupported, "'norm_topk_prob' is not true, which is not supported");
}

// What configurations of this class can say besides, but no published model does.
void Planner::check_small_thinker() {
  constexpr uint64_t kSoftmax = 1, kSigmoid = 2;
  put("expert_gating_func", config_["moe_primary_router_apply_softmax"].bool_or(false) ? kSoftmax : kSigmoid);
  config_.expect_flag("moe_enable_early_router", true);
  config_.expect_flag("moe_enable_secondary_experts", false);
  config_.expect_flag("use_qk_norm", false);
  for (const Json& layer : config_["moe_layer_layout"].items()) {
    if (layer.number_or(1) != 1)
      config_.fail(Code::kUnsupported,
                   "'moe_layer_layout' says that some layers have no experts, which is "
                   "not supported");
  }
  if (config_["moe_shared_primary_experts"].number_or(0) != 0)
    config_.fail(Code::kUnsupported, "'moe_shared_primary_experts' is not 0, which is not supported");
}

// Windows matter only where they are shorter than the context.
void Planner::read_window() {
  if (a_.family == Family::kSmallThinker) return read_layouts();
  const uint64_t window = config_.count_or("sliding_window", 0, kMaxContext);
  const bool used = config_["use_sliding_window"].bool_or(a_.is_llama());
  if (!used || window == 0 || window >= s_.context) return;
  if (a_.is_llama()) return put("attention.sliding_window", window);
  // Qwen: the layers from this one on.
  if (config_.count_or("max_window_layers", 0, kMaxLayers) < s_.layers) {
    config_.fail(Code::kUnsupported, "'use_sliding_window' is true, which is not supported here");
  }
}

// Whether the numbers of a field, one per layer, are `at_fourth` in layers 0, 4, 8 ... and `elsewhere`.
bool Planner::is_layout(const char* field, uint64_t fallback, uint64_t at_fourth, uint64_t elsewhere) const {
  const Json& layout = config_[field];
  const bool given = !layout.is_null();
  if (given && layout.items().size() != s_.layers) return false;
  for (uint64_t i = 0; i < s_.layers; ++i) {
    uint64_t value = fallback;
    if (given && !layout.items()[i].try_uint(1, &value)) return false;
    if (value != (i % 4 == 0 ? at_fourth : elsewhere)) return false;
  }
  return true;
}

// SmallThinker: a window's key means that the layers 0, 4, 8 ... have neither rope nor window and the others
// both, whatever the context; without it every layer has rope and none a window.
void Planner::read_layouts() {
  constexpr const char* kRope = "rope_layout";
  constexpr const char* kWindow = "sliding_window_layout";
  if (is_layout(kRope, 1, 1, 1) && is_layout(kWindow, 0, 0, 0)) return;
  if (is_layout(kRope, 1, 0, 1) && is_layout(kWindow, 0, 0, 1))
    return put("attention.sliding_window", config_.count("sliding_window_size", kMaxContext));
  config_.fail(Code::kUnsupported,
               "'rope_layout' and 'sliding_window_layout' are not known - known: rope and no window in every "
               "layer of num_hidden_layers; neither in layers 0, 4, 8 ... and both in the others");
}

void Planner::read_activation() {
  if (a_.family == Family::kSmallThinker) {  // The GGUF architecture implies it.
    plan_.activation = "relu";
    return config_.expect_text("hidden_act", "relu");
  }
  const std::string name = config_["hidden_act"].text();
  const bool silu = name == "silu" || name == "swish";
  const bool relu = name == "relu";
  const bool fatrelu = name == "fatrelu" && !a_.drelu;
  const bool known =
      a_.drelu ? relu || name == "drelu" : (silu && !a_.sparse) || ((relu || fatrelu) && a_.is_llama());
  if (!known) {
    return config_.fail(Code::kUnsupported, "'hidden_act' is '" + name.substr(0, 40) + "', expected " +
                                                (a_.drelu        ? "relu"
                                                 : a_.sparse     ? "relu or fatrelu"
                                                 : a_.is_llama() ? "silu, relu or fatrelu"
                                                                 : "silu"));
  }
  plan_.activation = a_.drelu ? "drelu" : silu ? "silu" : name;
  if (!silu) writer_->add_string("ganglion.ffn.activation", fatrelu ? "relu" : plan_.activation);
  if (fatrelu) {  // A gate counts where it is above the number; ProSparse's are 0.01.
    const Json& threshold = config_["hidden_act_param"];
    if (threshold.is_null())
      config_.fail(Code::kModelFile, "'hidden_act_param' is missing, fatrelu's threshold");
    writer_->add_float("ganglion.ffn.threshold",
                       static_cast<float>(config_.positive_or(threshold, "hidden_act_param", 0)));
  }
}

// Two styles: rope_theta and rope_scaling, or both in rope_parameters.
void Planner::read_rope() {
  const Json& newer = config_["rope_parameters"];
  const Json& rope = newer.is_object() ? newer : config_["rope_scaling"];
  const Json& theta = newer.has("rope_theta") ? newer["rope_theta"] : config_["rope_theta"];
  const double base = config_.positive_or(theta, "rope_theta", 10000);
  writer_->add_float(key("rope.freq_base"), static_cast<float>(base));
  put("rope.dimension_count", s_.head_dim);
  for (const Json* part : {&config_["partial_rotary_factor"], &rope["partial_rotary_factor"]}) {
    if (part->number_or(1) != 1) {
      return config_.fail(Code::kUnsupported, "'partial_rotary_factor' is not 1, which is not supported");
    }
  }
  std::string type = rope.has("rope_type") ? rope["rope_type"].text() : rope["type"].text();
  if (type.empty()) type = "default";
  if (type == "default") return;
  if (type == "llama3") return llama3_rope(rope, base);
  if (type != "linear" && type != "yarn") {
    return config_.fail(Code::kUnsupported, "rope scaling '" + type.substr(0, 40) +
                                                "' is not supported - known: linear, yarn, llama3");
  }
  const double factor = config_.positive_or(rope["factor"], "rope factor", 1);
  writer_->add_string(key("rope.scaling.type"), type);
  writer_->add_float(key("rope.scaling.factor"), static_cast<float>(factor));
  if (type == "linear") return;
  const double original =
      config_.positive_or(rope["original_max_position_embeddings"], "original_max_position_embeddings",
                          static_cast<double>(s_.context));
  put("rope.scaling.original_context_length", static_cast<uint64_t>(original));
  writer_->add_float(key("rope.scaling.yarn_beta_fast"),
                     static_cast<float>(config_.positive_or(rope["beta_fast"], "beta_fast", 32)));
  writer_->add_float(key("rope.scaling.yarn_beta_slow"),
                     static_cast<float>(config_.positive_or(rope["beta_slow"], "beta_slow", 1)));
  // The file's factor is on top of YaRN's own.
  const double own = 1 + 0.1 * std::log(factor);
  const double magnitude = config_.positive_or(rope["attention_factor"], "attention_factor", own);
  writer_->add_float(key("rope.scaling.attn_factor"), static_cast<float>(magnitude / own));
  if (rope.has("mscale") || rope.has("mscale_all_dim")) {
    config_.fail(Code::kUnsupported, "'mscale' of rope is not supported");
  }
}

// Llama 3.1: slow frequencies are divided, fast ones stay, a blend in between; as divisors per pair.
void Planner::llama3_rope(const Json& rope, double base) {
  const double factor = config_.positive_or(rope["factor"], "rope factor", 8);
  const double low = config_.positive_or(rope["low_freq_factor"], "low_freq_factor", 1);
  const double high = config_.positive_or(rope["high_freq_factor"], "high_freq_factor", 4);
  const double original =
      config_.positive_or(rope["original_max_position_embeddings"], "original_max_position_embeddings", 8192);
  if (high <= low) config_.fail(Code::kModelFile, "'high_freq_factor' is not above 'low_freq_factor'");
  PlannedTensor tensor{"rope_freqs.weight", {}};
  for (uint64_t i = 0; i < s_.head_dim; i += 2) {
    const double exponent = static_cast<double>(i) / static_cast<double>(s_.head_dim);
    const double wavelength = 2 * std::numbers::pi * std::pow(base, exponent);
    double divisor = 1;
    if (wavelength > original / low) {
      divisor = factor;
    } else if (wavelength > original / high) {
      const double share = (original / wavelength - low) / (high - low);
      divisor = 1 / ((1 - share) / factor + share);
    }
    tensor.values.push_back(static_cast<float>(divisor));
  }
  tensor.shape = {tensor.values.size()};
  plan_.tensors.push_back(std::move(tensor));
}

void Planner::write_sizes() {
  put("vocab_size", plan_.vocab);
  put("context_length", s_.context);
  put("embedding_length", s_.dim);
  put("block_count", s_.layers);
  put("feed_forward_length", s_.ffn);
  put("attention.head_count", s_.heads);
  put("attention.head_count_kv", s_.kv_heads);
  put("attention.key_length", s_.head_dim);
  put("attention.value_length", s_.head_dim);
  const double epsilon = config_.positive_or(config_["rms_norm_eps"], "rms_norm_eps", 1e-6);
  writer_->add_float(key("attention.layer_norm_rms_epsilon"), static_cast<float>(epsilon));
}

void Planner::tensors() {
  add("token_embd.weight", "model.embed_tokens.weight", {plan_.vocab, s_.dim}).is_embedding = true;
  for (uint64_t i = 0; i < s_.layers; ++i) {
    const std::string from = "model.layers." + std::to_string(i) + ".";
    const std::string to = "blk." + std::to_string(i) + ".";
    add(to + "attn_norm.weight", from + "input_layernorm.weight", {s_.dim});
    attention_tensors(from + "self_attn.", to);
    add(to + "ffn_norm.weight", from + "post_attention_layernorm.weight", {s_.dim});
    if (a_.experts != nullptr) {
      expert_tensors(from + a_.experts->folder, to);
    } else {
      ffn_tensors(from + "mlp.", to);
    }
  }
  add("output_norm.weight", "model.norm.weight", {s_.dim});
  if (!plan_.tied) add("output.weight", "lm_head.weight", {plan_.vocab, s_.dim}).is_embedding = true;
}

void Planner::attention_tensors(const std::string& from, const std::string& to) {
  const struct {
    const char* from;
    const char* to;
    uint64_t heads;
    bool rotated;
  } kInputs[] = {{"q_proj", "attn_q", s_.heads, true},
                 {"k_proj", "attn_k", s_.kv_heads, true},
                 {"v_proj", "attn_v", s_.kv_heads, false}};
  for (const auto& input : kInputs) {
    const uint64_t rows = input.heads * s_.head_dim;
    const uint64_t interleaved = a_.is_llama() && input.rotated ? input.heads : 0;
    const std::string source = from + input.from;
    add(to + input.to + ".weight", source + ".weight", {rows, s_.dim}).interleaved_heads = interleaved;
    PlannedTensor& bias = add(to + input.to + ".bias", source + ".bias", {rows});
    bias.interleaved_heads = interleaved;
    bias.optional = !a_.qkv_biases;
  }
  add(to + "attn_output.weight", from + "o_proj.weight", {s_.dim, s_.heads * s_.head_dim});
  add(to + "attn_output.bias", from + "o_proj.bias", {s_.dim}).optional = true;
  if (!a_.head_norms) return;
  add(to + "attn_q_norm.weight", from + "q_norm.weight", {s_.head_dim});
  add(to + "attn_k_norm.weight", from + "k_norm.weight", {s_.head_dim});
}

void Planner::ffn_tensors(const std::string& from, const std::string& to) {
  add(to + "ffn_gate.weight", from + "gate_proj.weight", {s_.ffn, s_.dim});
  add(to + "ffn_gate.bias", from + "gate_proj.bias", {s_.ffn}).optional = true;
  add(to + "ffn_up.weight", from + "up_proj.weight", {s_.ffn, s_.dim});
  add(to + "ffn_up.bias", from + "up_proj.bias", {s_.ffn}).optional = true;
  add(to + "ffn_down.weight", from + "down_proj.weight", {s_.dim, s_.ffn});
  add(to + "ffn_down.bias", from + "down_proj.bias", {s_.dim}).optional = true;
  // TurboSparse's own predictors, [rank][D] and [F][rank].
  add(to + "ffn_predictor_fc1.weight", from + "predictor.fc1.weight", {0, s_.dim}).optional = true;
  add(to + "ffn_predictor_fc2.weight", from + "predictor.fc2.weight", {s_.ffn, 0}).optional = true;
}

void Planner::expert_tensors(const std::string& from, const std::string& to) {
  const std::string router = from + a_.experts->router + ".weight";
  add(to + "ffn_gate_inp.weight", router, {s_.experts, s_.dim}).is_small = true;
  constexpr const char* kNames[] = {"ffn_gate_exps.weight", "ffn_up_exps.weight", "ffn_down_exps.weight"};
  for (size_t part = 0; part < std::size(kNames); ++part) {
    const bool down = part == 2;
    PlannedTensor tensor{
        to + kNames[part], {}, {down ? s_.dim : s_.expert_ffn, down ? s_.expert_ffn : s_.dim}};
    for (uint64_t e = 0; e < s_.experts; ++e) {
      tensor.sources.push_back(from + "experts." + std::to_string(e) + "." + a_.experts->parts[part] +
                               ".weight");
    }
    plan_.tensors.push_back(std::move(tensor));
  }
}

}  // namespace

Result<ModelPlan> plan_model(const Json& config, const std::string& path, GgufWriter* writer) {
  const std::vector<Json>& names = config["architectures"].items();
  const std::string name = names.empty() ? "" : names[0].text();
  if (name == "OPTForCausalLM") return plan_opt(config, path, writer);
  const auto* found = std::find_if(std::begin(kArchitectures), std::end(kArchitectures),
                                   [&](const Architecture& a) { return name == a.name; });
  if (found != std::end(kArchitectures)) return Planner(*found, config, path, writer).run();
  std::string known = "OPTForCausalLM";
  for (const Architecture& a : kArchitectures) known += std::string(", ") + a.name;
  return Status(Code::kUnsupported, "'" + path + "': architecture '" + name.substr(0, 80) +
                                        "' cannot be converted - known: " + known);
}

}  // namespace ganglion::convert

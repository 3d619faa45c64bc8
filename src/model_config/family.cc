#include "model_config/family.h"

#include <cmath>

#include "base/units.h"

namespace ganglion::model_config {

using base::Code;
using base::Result;
using base::Status;

namespace {

constexpr uint64_t kMaxLayers = 4096;
constexpr uint64_t kMaxDim = 1U << 20;
constexpr uint64_t kMaxHeads = 4096;
constexpr uint64_t kMaxContext = 1U << 28;
constexpr uint64_t kMaxExperts = 4096;

void read_rope(KeyReader& keys, ModelConfig* config) {
  RopeConfig& rope = config->rope;
  rope.dims = keys.count_or("rope.dimension_count", config->key_dims, kMaxDim);
  rope.base = keys.number_or("rope.freq_base", 10000);
  const std::string type =
      keys.text_or("rope.scaling.type", keys.has("rope.scale_linear") ? "linear" : "none");
  const float factor = keys.number_or("rope.scaling.factor", keys.number_or("rope.scale_linear", 1));
  rope.original_context =
      keys.count_or("rope.scaling.original_context_length", config->context_trained, kMaxContext);
  if (type == "linear" || type == "yarn") {
    if (!(factor > 0)) keys.fail(Code::kModelFile, keys.key("rope.scaling.factor") + " is not positive");
    rope.frequency_scale = 1 / factor;
  } else if (type != "none" && type != "longrope") {
    keys.fail(Code::kUnsupported,
              "rope scaling '" + type + "' is not supported - known: none, linear, yarn, longrope");
  }
  rope.magnitude = keys.number_or("rope.scaling.attn_factor", 1);
  rope.yarn = type == "yarn";
  if (rope.yarn) {
    rope.beta_fast = keys.number_or("rope.scaling.yarn_beta_fast", 32);
    rope.beta_slow = keys.number_or("rope.scaling.yarn_beta_slow", 1);
    rope.magnitude *= 1 + 0.1F * std::log(factor);
  }
  if (!(rope.base > 0) || rope.dims % 2 != 0 || rope.dims > config->key_dims) {
    keys.fail(Code::kModelFile, base::format("rope of base %g and %u of %u head elements makes no sense",
                                             static_cast<double>(rope.base), rope.dims, config->key_dims));
  }
}

void read_experts(KeyReader& keys, ModelConfig* config) {
  MoeConfig& moe = config->moe;
  moe.expert_count = keys.count_or("expert_count", 0, kMaxExperts);
  if (moe.expert_count == 0) return;
  moe.used_count = keys.count("expert_used_count", moe.expert_count);
  moe.expert_ffn = keys.count_or("expert_feed_forward_length",
                                 config->layers.empty() ? 0 : config->layers[0].ffn, kMaxDim);
  moe.weight_scale = keys.number_or("expert_weights_scale", 1);
  if (moe.weight_scale == 0) moe.weight_scale = 1;  // Some converters write 0 for "no scale".
  for (LayerConfig& layer : config->layers) layer.moe = true;
}

void read_pack(KeyReader& keys, ModelConfig* config) {
  const base::Metadata& metadata = keys.metadata();
  if (!metadata.has("ganglion.pack.version")) return;
  const Result<uint64_t> version = metadata.uint_required("ganglion.pack.version");
  if (!version.ok() || version.value() != 2) {
    keys.fail(Code::kUnsupported, "ganglion.pack.version is not 2 - pack the model again with this program");
    return;
  }
  PackConfig& pack = config->pack;
  pack.present = true;
  const Result<std::string> down = metadata.string_required("ganglion.pack.down");
  if (!down.ok()) return keys.fail(Code::kModelFile, down.status().message());
  pack.down = down.value();
  const Result<bool> slim = metadata.bool_or("ganglion.pack.slim", false);
  const Result<std::string> sparsify = metadata.string_or("ganglion.pack.sparsify", "");
  const Result<double> left_out = metadata.float_or("ganglion.pack.left_out", 0);
  const Result<double> divergence = metadata.float_or("ganglion.pack.divergence", -1);
  const Result<double> over =
      metadata.float_or("ganglion.pack.over_prediction", static_cast<double>(pack.over_prediction));
  for (const Status& status :
       {slim.status(), sparsify.status(), left_out.status(), divergence.status(), over.status()}) {
    if (!status.ok()) return keys.fail(Code::kModelFile, status.message());
  }
  pack.slim = slim.value();
  pack.sparsify = sparsify.value();
  pack.left_out = static_cast<float>(left_out.value());
  pack.divergence = static_cast<float>(divergence.value());
  if (over.value() >= 1 && over.value() <= 1000) pack.over_prediction = static_cast<float>(over.value());
  pack.layers.resize(config->layers.size());
  const auto fill = [&](const char* key, uint32_t PackConfig::Layer::*member) {
    const Result<std::vector<double>> values = metadata.numbers(key);
    if (!values.ok() || values.value().size() != pack.layers.size()) {
      keys.fail(Code::kModelFile, base::format("metadata key '%s' is missing or has not one number for each "
                                               "of %zu layers",
                                               key, pack.layers.size()));
      return;
    }
    for (size_t i = 0; i < pack.layers.size(); ++i) {
      const double value = values.value()[i];
      if (!(value >= 0 && value <= kMaxDim * 16)) {
        keys.fail(Code::kModelFile, base::format("metadata key '%s' holds %g", key, value));
        return;
      }
      pack.layers[i].*member = static_cast<uint32_t>(value);
    }
  };
  fill("ganglion.pack.gate_type", &PackConfig::Layer::gate_type);
  fill("ganglion.pack.up_type", &PackConfig::Layer::up_type);
  fill("ganglion.pack.stride", &PackConfig::Layer::stride);
  fill("ganglion.pack.rank", &PackConfig::Layer::rank);
  if (metadata.has("ganglion.pack.rectified")) fill("ganglion.pack.rectified", &PackConfig::Layer::rectified);
}

// Families that take no threshold would compute without it, and nobody would know.
double threshold_of(const base::Metadata& metadata) {
  const Result<double> threshold = metadata.float_or("ganglion.ffn.threshold", 0);
  return threshold.ok() ? threshold.value() : -1;
}

struct Family {
  const char* name;
  FamilyReader read;
};
constexpr Family kFamilies[] = {
    {"llama", read_llama},
    {"bamboo", read_bamboo},  // what PowerInfer's tools call it
    {"qwen2", read_qwen2},
    {"qwen3", read_qwen3},
    {"qwen3moe", read_qwen3moe},
    {"gemma2", read_gemma2},
    {"gemma3", read_gemma3},
    {"gpt-oss", read_gpt_oss},
    {"olmoe", read_olmoe},
    {"opt", read_opt},
    {"phi3", read_phi3},
    {"granite", read_granite},
    {"glm4moe", read_glm4moe},
    {"deepseek2", read_deepseek2},
    {"smallthinker", read_smallthinker},
};

}  // namespace

uint32_t KeyReader::bounded(const std::string& name, uint64_t value, uint64_t least, uint64_t limit) {
  if (value < least || value > limit) {
    fail(Code::kModelFile,
         base::format("metadata key '%s' is %llu, expected %llu to %llu", key(name).c_str(),
                      static_cast<unsigned long long>(value), static_cast<unsigned long long>(least),
                      static_cast<unsigned long long>(limit)));
    return static_cast<uint32_t>(least);
  }
  return static_cast<uint32_t>(value);
}

uint32_t KeyReader::count(const std::string& name, uint64_t limit) {
  const Result<uint64_t> value = metadata_.uint_required(key(name));
  if (!value.ok()) fail(value.status().code(), value.status().message());
  return bounded(name, value.ok() ? value.value() : 1, 1, limit);
}

uint32_t KeyReader::count_or(const std::string& name, uint64_t fallback, uint64_t limit) {
  const Result<uint64_t> value = metadata_.uint_or(key(name), fallback);
  if (!value.ok()) fail(value.status().code(), value.status().message());
  return bounded(name, value.ok() ? value.value() : fallback, 0, limit);
}

float KeyReader::number_or(const std::string& name, double fallback) {
  const Result<double> value = metadata_.float_or(key(name), fallback);
  if (!value.ok()) fail(value.status().code(), value.status().message());
  return static_cast<float>(value.ok() ? value.value() : fallback);
}

bool KeyReader::flag_or(const std::string& name, bool fallback) {
  const Result<bool> value = metadata_.bool_or(key(name), fallback);
  if (!value.ok()) fail(value.status().code(), value.status().message());
  return value.ok() ? value.value() : fallback;
}

std::string KeyReader::text_or(const std::string& name, const std::string& fallback) {
  const Result<std::string> value = metadata_.string_or(key(name), fallback);
  if (!value.ok()) fail(value.status().code(), value.status().message());
  return value.ok() ? value.value() : fallback;
}

std::vector<uint32_t> KeyReader::per_layer(const std::string& name, size_t layers, uint64_t limit) {
  std::vector<uint32_t> out(layers, 1);
  const Result<std::vector<double>> numbers = metadata_.numbers(key(name));
  if (!numbers.ok()) {
    fail(numbers.status().code(), numbers.status().message());
    return out;
  }
  const std::vector<double>& given = numbers.value();
  if (given.empty()) {
    fail(Code::kModelFile, "metadata key '" + key(name) + "' is missing");
  } else if (given.size() != 1 && given.size() < layers) {
    fail(Code::kModelFile,
         base::format("metadata key '%s' has %zu elements, expected one for each of %zu layers",
                      key(name).c_str(), given.size(), layers));
  } else {
    for (size_t i = 0; i < layers; ++i) {
      const double value = given.size() == 1 ? given[0] : given[i];
      out[i] = bounded(name, value >= 0 ? static_cast<uint64_t>(value) : 0, 1, limit);
    }
  }
  return out;
}

void KeyReader::fail(Code code, const std::string& message) {
  if (status_.ok()) status_ = Status(code, message);
}

void read_common(KeyReader& keys, ModelConfig* config) {
  const uint32_t layer_count = keys.count("block_count", kMaxLayers);
  config->block_count = layer_count;
  config->dim = keys.count("embedding_length", kMaxDim);
  config->context_trained = keys.count("context_length", kMaxContext);
  config->vocab = keys.count_or("vocab_size", 0, 1U << 24);
  config->norm_epsilon = keys.number_or("attention.layer_norm_rms_epsilon", 1e-5);
  const std::vector<uint32_t> heads = keys.per_layer("attention.head_count", layer_count, kMaxHeads);
  const std::vector<uint32_t> kv_heads =
      keys.has("attention.head_count_kv") ? keys.per_layer("attention.head_count_kv", layer_count, kMaxHeads)
                                          : heads;
  // Dense width; MoE-only models may leave it out.
  const std::vector<uint32_t> ffn = keys.has("feed_forward_length")
                                        ? keys.per_layer("feed_forward_length", layer_count, kMaxDim)
                                        : std::vector<uint32_t>(layer_count, 1);
  for (uint32_t i = 0; i < layer_count; ++i) {
    LayerConfig layer;
    layer.heads = heads[i];
    layer.kv_heads = kv_heads[i];
    layer.ffn = ffn[i];
    if (heads[i] % kv_heads[i] != 0) {
      keys.fail(Code::kModelFile, base::format("%u query heads are not a multiple of %u key-value heads "
                                               "(attention.head_count_kv)",
                                               heads[i], kv_heads[i]));
    }
    config->layers.push_back(layer);
  }
  config->key_dims = keys.count_or("attention.key_length", config->dim / heads[0], kMaxDim);
  config->value_dims = keys.count_or("attention.value_length", config->dim / heads[0], kMaxDim);
  if (config->key_dims == 0 || config->value_dims == 0) {
    keys.fail(Code::kModelFile, "attention heads have no elements (attention.key_length, head_count)");
    config->key_dims = config->value_dims = 1;
  }
  config->attention_scale = 1 / std::sqrt(static_cast<float>(config->key_dims));
  read_rope(keys, config);
  read_experts(keys, config);
}

void read_rectified_activation(KeyReader& keys, ModelConfig* config) {
  const auto activation = keys.metadata().string_or("ganglion.ffn.activation", "silu");
  const std::string name = activation.ok() ? activation.value() : "not a string";
  if (name == "relu") {
    config->activation = FfnActivation::kRelu;
  } else if (name == "drelu") {
    config->activation = FfnActivation::kDRelu;
  } else if (name != "silu") {
    keys.fail(base::Code::kUnsupported,
              "ganglion.ffn.activation is '" + name + "', expected silu, relu or drelu");
  }
  const Result<double> threshold = keys.metadata().float_or("ganglion.ffn.threshold", 0);
  if (!threshold.ok()) return keys.fail(threshold.status().code(), threshold.status().message());
  config->ffn_threshold = static_cast<float>(threshold.value());
  const bool possible = config->ffn_threshold == 0 || config->activation == FfnActivation::kRelu;
  if (!possible || !(config->ffn_threshold >= 0 && std::isfinite(config->ffn_threshold))) {
    keys.fail(
        Code::kUnsupported,
        base::format("ganglion.ffn.threshold is %g, expected 0 or more, with ganglion.ffn.activation relu",
                     threshold.value()));
  }
}

std::vector<std::string> supported_architectures() {
  std::vector<std::string> names;
  for (const Family& family : kFamilies) names.emplace_back(family.name);
  return names;
}

Result<ModelConfig> read_model_config(const base::Metadata& metadata) {
  GANGLION_ASSIGN_OR_RETURN(const std::string architecture, metadata.string_required("general.architecture"));
  for (const Family& family : kFamilies) {
    if (architecture != family.name) continue;
    KeyReader keys(metadata, architecture);
    ModelConfig config;
    config.architecture = architecture;
    const Result<std::string> name = metadata.string_or("general.name", "");
    config.name = name.ok() ? name.value() : "";
    read_common(keys, &config);
    if (keys.status().ok()) family.read(keys, &config);
    if (keys.status().ok() && config.ffn_threshold == 0 && threshold_of(metadata) != 0) {
      keys.fail(Code::kUnsupported,
                "ganglion.ffn.threshold is not known for architecture '" + architecture + "'");
    }
    if (keys.status().ok()) read_pack(keys, &config);
    if (!keys.status().ok()) return keys.status();
    return config;
  }
  std::string known;
  for (const Family& family : kFamilies) known += std::string(known.empty() ? "" : ", ") + family.name;
  return Status(Code::kUnsupported, "architecture '" + architecture + "' is not supported - known: " + known);
}

}  // namespace ganglion::model_config

// DeepSeek V2 and V3: multi-head latent attention, shared experts, group-limited routing, leading dense
// layers.
#include <algorithm>
#include <cmath>

#include "model_config/family.h"

namespace ganglion::model_config {

namespace {

// With YaRN, keys and values carry no magnitude: it moves into the score scale, squared, with a slope of its
// own.
void read_yarn_slope(KeyReader& keys, ModelConfig* config) {
  if (!config->rope.yarn) return;
  const float log_factor = std::log(1 / config->rope.frequency_scale);
  const float slope = keys.number_or("rope.scaling.yarn_log_multiplier", 0);
  const float magnitude = 1 + slope * log_factor;
  config->attention_scale *= magnitude * magnitude;
  config->rope.magnitude = 1;
}

}  // namespace

void read_deepseek2(KeyReader& keys, ModelConfig* config) {
  MlaConfig& mla = config->mla;
  mla.kv_rank = keys.count("attention.kv_lora_rank", 1U << 16);
  mla.q_rank = keys.count_or("attention.q_lora_rank", 0, 1U << 16);
  if (!keys.has("attention.key_length_mla")) {
    keys.fail(base::Code::kUnsupported,
              "this deepseek2 file has the older layout without "
              "deepseek2.attention.key_length_mla - convert the model anew");
    return;
  }
  const uint32_t head_dims = keys.count("attention.key_length_mla", 1U << 16);
  mla.value_dims = keys.count("attention.value_length_mla", 1U << 16);
  config->attention_scale = 1 / std::sqrt(static_cast<float>(head_dims));
  read_yarn_slope(keys, config);
  // Attention runs on the latent: one key of kv_rank + rope elements, whose first kv_rank are the value.
  if (head_dims <= config->rope.dims || config->key_dims != mla.kv_rank + config->rope.dims ||
      config->value_dims != mla.kv_rank) {
    keys.fail(base::Code::kModelFile,
              "deepseek2.attention.key_length, key_length_mla, kv_lora_rank and "
              "rope.dimension_count contradict each other");
    return;
  }
  mla.nope_dims = head_dims - config->rope.dims;
  for (LayerConfig& layer : config->layers) layer.kv_heads = 1;
  const uint32_t dense = keys.count_or("leading_dense_block_count", 0, config->layers.size());
  for (size_t i = 0; i < dense; ++i) config->layers[i].moe = false;
  MoeConfig& moe = config->moe;
  moe.score = keys.count_or("expert_gating_func", 1, 2) == 2 ? RouterScore::kSigmoid : RouterScore::kSoftmax;
  moe.normalise = keys.flag_or("expert_weights_norm", false);
  moe.shared_ffn = moe.expert_ffn * keys.count_or("expert_shared_count", 0, 64);
  moe.group_count = std::max(1U, keys.count_or("expert_group_count", 1, 1024));
  moe.groups_used = std::max(1U, keys.count_or("expert_group_used_count", 1, 1024));
  if (moe.expert_count % moe.group_count != 0 || moe.groups_used > moe.group_count ||
      moe.used_count > moe.expert_count / moe.group_count * moe.groups_used) {
    keys.fail(base::Code::kModelFile,
              "deepseek2.expert_count, expert_used_count, expert_group_count and "
              "expert_group_used_count contradict each other");
  }
}

}  // namespace ganglion::model_config

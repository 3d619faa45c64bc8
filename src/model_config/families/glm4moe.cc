// GLM-4.5: partial rope, sigmoid router with a selection bias, shared expert, leading dense layers. The
// layers for multi-token prediction at the end are not run.
#include "model_config/family.h"

namespace ganglion::model_config {

void read_glm4moe(KeyReader& keys, ModelConfig* config) {
  config->rope.style = RopeStyle::kHalves;
  config->optional_head_norms = true;
  config->ffn_norm_name = "post_attention_norm";
  const auto layers = static_cast<uint32_t>(config->layers.size());
  config->layers.resize(layers - keys.count_or("nextn_predict_layers", 0, layers - 1));
  const uint32_t dense = keys.count_or("leading_dense_block_count", 0, config->layers.size());
  for (size_t i = 0; i < dense; ++i) config->layers[i].moe = false;
  config->moe.score =
      keys.count_or("expert_gating_func", 2, 2) == 2 ? RouterScore::kSigmoid : RouterScore::kSoftmax;
  config->moe.normalise = keys.flag_or("expert_weights_norm", true);
  config->moe.shared_ffn = config->moe.expert_ffn * keys.count_or("expert_shared_count", 0, 64);
}

}  // namespace ganglion::model_config

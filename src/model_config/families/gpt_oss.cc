// gpt-oss: attention sinks, windows in every other layer, biases everywhere, clamped gates, experts only.
#include "model_config/family.h"

namespace ganglion::model_config {

void read_gpt_oss(KeyReader& keys, ModelConfig* config) {
  config->rope.style = RopeStyle::kHalves;
  config->activation = FfnActivation::kSwigluOai;
  config->sinks = true;
  config->ffn_norm_name = "post_attention_norm";
  config->moe.score = RouterScore::kSoftmaxOfSelected;
  config->moe.normalise = false;
  if (config->moe.expert_count == 0)
    keys.fail(base::Code::kModelFile, "gpt-oss.expert_count is missing or 0");
  const uint32_t window = keys.count("attention.sliding_window", 1U << 28);
  for (size_t i = 0; i < config->layers.size(); i += 2) config->layers[i].window = window;
}

}  // namespace ganglion::model_config

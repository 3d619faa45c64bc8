// SmallThinker: the router reads the layer's input before attention; rectified experts; of four layers three
// have rope and a window, one sees everything without rope. A file without a window key has rope everywhere.
#include "model_config/family.h"

namespace ganglion::model_config {

void read_smallthinker(KeyReader& keys, ModelConfig* config) {
  config->rope.style = RopeStyle::kHalves;
  config->activation = FfnActivation::kRelu;
  config->moe.router_before_attention = true;
  if (config->moe.expert_count == 0)
    keys.fail(base::Code::kModelFile, "smallthinker.expert_count is missing or 0");
  config->moe.score =
      keys.count_or("expert_gating_func", 2, 2) == 2 ? RouterScore::kSigmoid : RouterScore::kSoftmax;
  const uint32_t window = keys.count_or("attention.sliding_window", 0, 1U << 28);
  if (window == 0) return;
  for (size_t i = 0; i < config->layers.size(); ++i) {
    if (i % 4 == 0) {
      config->layers[i].rope = false;
    } else {
      config->layers[i].window = window;
    }
  }
}

}  // namespace ganglion::model_config

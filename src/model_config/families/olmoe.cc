// OLMoE: norms over the whole query and key, expert weights as the softmax gives them.
#include "model_config/family.h"

namespace ganglion::model_config {

void read_olmoe(KeyReader& keys, ModelConfig* config) {
  config->rope.style = RopeStyle::kHalves;
  config->full_width_norms = true;
  config->moe.normalise = false;
  if (config->moe.expert_count == 0) keys.fail(base::Code::kModelFile, "olmoe.expert_count is missing or 0");
}

}  // namespace ganglion::model_config

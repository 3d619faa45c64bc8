// Qwen2 and Qwen2.5 (biases on QKV), Qwen3 (norms on query and key heads instead), Qwen3-MoE.
#include "model_config/family.h"

namespace ganglion::model_config {

void read_qwen2(KeyReader&, ModelConfig* config) {
  config->rope.style = RopeStyle::kHalves;
}

void read_qwen3(KeyReader&, ModelConfig* config) {
  config->rope.style = RopeStyle::kHalves;
  config->head_norms = true;
}

void read_qwen3moe(KeyReader& keys, ModelConfig* config) {
  read_qwen3(keys, config);
  read_rectified_activation(keys, config);
  if (config->moe.expert_count == 0)
    keys.fail(base::Code::kModelFile, "qwen3moe.expert_count is missing or 0");
}

}  // namespace ganglion::model_config

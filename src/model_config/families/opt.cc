// OPT: layer norms, learned positions, biases everywhere, rectified FFN without a gate. Files come from
// `ganglion convert`, which leaves out the two rows that Hugging Face's position table begins with.
#include "model_config/family.h"

namespace ganglion::model_config {

void read_opt(KeyReader& keys, ModelConfig* config) {
  config->activation = FfnActivation::kRelu;
  config->layer_norm = true;
  config->learned_positions = true;
  config->ungated = true;
  config->norm_epsilon = keys.number_or("attention.layer_norm_epsilon", 1e-5);
  for (LayerConfig& layer : config->layers) layer.rope = false;
}

}  // namespace ganglion::model_config

// Llama 1 to 3, Mistral, SmolLM2, Mixtral (the same keys with experts), and Bamboo as PowerInfer's tools call
// it.
#include "model_config/family.h"

namespace ganglion::model_config {

void read_llama(KeyReader& keys, ModelConfig* config) {
  // Mistral's first models: every layer sees the last positions only.
  const uint32_t window = keys.count_or("attention.sliding_window", 0, 1U << 28);
  for (LayerConfig& layer : config->layers) layer.window = window;
  read_rectified_activation(keys, config);
}

void read_bamboo(KeyReader& keys, ModelConfig* config) {
  read_llama(keys, config);
  if (!keys.metadata().has("ganglion.ffn.activation")) config->activation = FfnActivation::kDRelu;
}

}  // namespace ganglion::model_config

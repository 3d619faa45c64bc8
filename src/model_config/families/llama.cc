// Llama 1 to 3, Mistral, SmolLM2, and Mixtral (the same keys with experts). ReLU variants of these carry the
// string key `ganglion.ffn.activation`: silu, relu (gate rectified) or drelu (gate and up rectified).
#include "model_config/family.h"

namespace ganglion::model_config {

void read_llama(KeyReader& keys, ModelConfig* config) {
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
}

}  // namespace ganglion::model_config

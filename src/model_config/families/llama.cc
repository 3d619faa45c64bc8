// Llama 1 to 3, Mistral, SmolLM2, and Mixtral (the same keys with experts).
#include "model_config/family.h"

namespace ganglion::model_config {

void read_llama(KeyReader& keys, ModelConfig* config) {
  read_rectified_activation(keys, config);
}

}  // namespace ganglion::model_config

// Granite 3: Llama with four multipliers.
#include "model_config/family.h"

namespace ganglion::model_config {

void read_granite(KeyReader& keys, ModelConfig* config) {
  config->embedding_scale = keys.number_or("embedding_scale", 1);
  config->residual_scale = keys.number_or("residual_scale", 1);
  config->attention_scale = keys.number_or("attention.scale", static_cast<double>(config->attention_scale));
  const float divisor = keys.number_or("logit_scale", 1);
  if (divisor == 0) keys.fail(base::Code::kModelFile, "granite.logit_scale is 0");
  config->logit_scale = 1 / divisor;
}

}  // namespace ganglion::model_config

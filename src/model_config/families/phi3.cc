// Phi-3 and Phi-4: fused QKV and gate-up matrices, long-context rope factors as tensors.
#include "model_config/family.h"

namespace ganglion::model_config {

void read_phi3(KeyReader& keys, ModelConfig* config) {
  config->rope.style = RopeStyle::kHalves;
  config->fused_qkv = true;
  config->fused_gate_up = true;
  const uint32_t window = keys.count_or("attention.sliding_window", 0, 1U << 28);
  for (LayerConfig& layer : config->layers) layer.window = window;
}

}  // namespace ganglion::model_config

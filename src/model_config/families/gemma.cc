// Gemma 2 and 3: scaled embeddings, norms before and after each part, GELU, sliding windows in most layers.
#include <cmath>

#include "model_config/family.h"

namespace ganglion::model_config {

namespace {

void read_gemma(KeyReader& keys, ModelConfig* config, uint32_t big_layers, uint32_t default_window) {
  config->rope.style = RopeStyle::kHalves;
  config->activation = FfnActivation::kGeluTanh;
  config->embedding_scale = std::sqrt(static_cast<float>(config->dim));
  config->post_norms = true;
  config->final_softcap = keys.number_or("final_logit_softcapping", 0);
  // The 27B of each generation scales scores by the model's width per head; no key says so.
  if (config->layers.size() == big_layers) {
    config->attention_scale = 1 / std::sqrt(static_cast<float>(config->dim / config->layers[0].heads));
  }
  const uint32_t window = keys.count_or("attention.sliding_window", default_window, 1U << 28);
  for (LayerConfig& layer : config->layers) layer.window = window;
}

}  // namespace

void read_gemma2(KeyReader& keys, ModelConfig* config) {
  read_gemma(keys, config, 46, 4096);
  config->attention_softcap = keys.number_or("attn_logit_softcapping", 50);
  config->final_softcap = keys.number_or("final_logit_softcapping", 30);
  for (size_t i = 1; i < config->layers.size(); i += 2) config->layers[i].window = 0;
}

void read_gemma3(KeyReader& keys, ModelConfig* config) {
  read_gemma(keys, config, 62, 1024);
  config->head_norms = true;
  // Windowed layers rotate with a base of their own and never scale.
  config->rope_local = RopeConfig{.style = RopeStyle::kHalves,
                                  .dims = config->rope.dims,
                                  .base = keys.number_or("rope.freq_base_swa", 10000)};
  for (size_t i = 0; i < config->layers.size(); ++i) {
    const bool global = i % 6 == 5;
    if (global) config->layers[i].window = 0;
    config->layers[i].local_rope = !global;
  }
}

}  // namespace ganglion::model_config

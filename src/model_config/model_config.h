// What a model is: hyper-parameters and tensor names of its architecture, read from metadata alone (pure).
// One file per family in families/ fills a ModelConfig; model/ and engine/ run whatever it says.
// Knows no files, no weights, no maths.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/metadata.h"
#include "base/status.h"

namespace ganglion::model_config {

/// Which elements of a head are rotated together.
enum class RopeStyle : uint8_t { kAdjacent, kHalves };

/// Rotary embedding of one kind of layer. Angles: position * scale-adjusted base^(-2i/dims).
struct RopeConfig {
  RopeStyle style = RopeStyle::kAdjacent;
  uint32_t dims = 0;  ///< Rotated elements of a head; the rest passes through.
  float base = 10000;
  float frequency_scale = 1;  ///< 1/factor of linear or YaRN scaling.
  bool yarn = false;          ///< Blend scaled and unscaled frequencies between beta_fast and beta_slow.
  float beta_fast = 32;
  float beta_slow = 1;
  uint32_t original_context = 0;
  float magnitude = 1;  ///< Multiplies cosine and sine.
};

enum class FfnActivation : uint8_t { kSilu, kGeluTanh, kRelu, kDRelu, kSwigluOai };
enum class RouterScore : uint8_t { kSoftmax, kSigmoid, kSoftmaxOfSelected };

/// Router and experts of the MoE layers.
struct MoeConfig {
  uint32_t expert_count = 0;  ///< 0: no MoE layers.
  uint32_t used_count = 0;
  uint32_t expert_ffn = 0;
  uint32_t shared_ffn = 0;  ///< Width of the always-active experts together; 0: none.
  RouterScore score = RouterScore::kSoftmax;
  bool normalise = true;  ///< Selected weights are divided by their sum.
  float weight_scale = 1;
  uint32_t group_count = 1;  ///< Selection is limited to the best `groups_used` groups of experts.
  uint32_t groups_used = 1;
  bool router_before_attention = false;  ///< The router reads the layer's raw input.
};

/// Multi-head latent attention (DeepSeek): keys and values are projections of one latent vector per position.
struct MlaConfig {
  uint32_t kv_rank = 0;    ///< 0: no MLA.
  uint32_t q_rank = 0;     ///< 0: the query has one full matrix.
  uint32_t nope_dims = 0;  ///< Per head: unrotated query/key elements.
  uint32_t value_dims = 0;
};

/// A pack (docs/pack_format.md) holds gate and up rows and transposed down rows of FFN neurons as bundles.
struct PackConfig {
  struct Layer {
    uint32_t gate_type = 0;  ///< GGUF type numbers of gate and up rows.
    uint32_t up_type = 0;
    uint32_t stride = 0;     ///< Bytes from bundle to bundle on storage; 0: the layer is not packed.
    uint32_t rank = 0;       ///< Of the predictor; 0: none, gates are a matrix of their own.
    uint32_t rectified = 0;  ///< 1: the predictor is an MLP, with a ReLU between its factors.
  };
  bool present = false;
  std::string down;       ///< Type of the transposed down rows: q4, q6, q8, f16 or f32.
  bool slim = false;      ///< There are no other down rows: prompts use them too.
  std::string sparsify;   ///< "cats": small SiLU activations are left out; empty: none are.
  float left_out = 0;     ///< Their share.
  float divergence = -1;  ///< Mean KL divergence in nat from exact passes; below 0: not measured.
  std::vector<Layer> layers;
  float over_prediction = 1.6F;  ///< Predicted neurons per active one, for estimates.
};

struct LayerConfig {
  uint32_t heads = 0;
  uint32_t kv_heads = 0;
  uint32_t ffn = 0;  ///< Width of the dense FFN (unused in an MoE layer).
  bool moe = false;
  uint32_t window = 0;  ///< Positions seen, the own one included; 0: all.
  bool rope = true;
  bool local_rope = false;  ///< Uses ModelConfig::rope_local.
};

struct ModelConfig {
  std::string architecture;
  std::string name;
  uint32_t block_count = 0;  ///< Layers in the file; some families do not run the last ones.
  uint32_t dim = 0;          ///< D
  uint32_t vocab = 0;        ///< V, rows of the embedding; set by the loader where metadata has no size.
  uint32_t context_trained = 0;
  uint32_t key_dims = 0;    ///< Per head.
  uint32_t value_dims = 0;  ///< Per head.
  float norm_epsilon = 1e-5F;
  RopeConfig rope;
  RopeConfig rope_local;  ///< For layers that say so.
  FfnActivation activation = FfnActivation::kSilu;
  MoeConfig moe;
  MlaConfig mla;
  PackConfig pack;
  float embedding_scale = 1;
  float residual_scale = 1;
  float logit_scale = 1;        ///< Logits are multiplied by this.
  float attention_scale = 0;    ///< Scores are multiplied by this.
  float attention_softcap = 0;  ///< 0: none.
  float final_softcap = 0;
  /// FATReLU: gates that are not above it count as zero; with kRelu alone.
  float ffn_threshold = 0;
  bool layer_norm = false;           ///< Layer norms with biases instead of RMS norms.
  bool learned_positions = false;    ///< A row per position is added to the embedding.
  bool ungated = false;              ///< The FFN is down(act(up(x))), without a gate.
  bool fused_qkv = false;            ///< One matrix, rows of Q, K, V in this order.
  bool fused_gate_up = false;        ///< One matrix, rows of gate before those of up.
  bool head_norms = false;           ///< RMS norm on each query and key head...
  bool full_width_norms = false;     ///< ...or on the whole query and key.
  bool optional_head_norms = false;  ///< Only where the file has them.
  bool sinks = false;
  bool post_norms = false;  ///< Norms on the outputs of attention and FFN.
  const char* ffn_norm_name = "ffn_norm";
  std::vector<LayerConfig> layers;
};

/// Reads the configuration of a supported architecture. Every number is checked against sane bounds.
/// Errors: kUnsupported for an architecture that is not known (lists those that are) or a feature that is not
/// built, kModelFile for a missing or contradictory key.
base::Result<ModelConfig> read_model_config(const base::Metadata& metadata);

/// Names of the supported architectures.
std::vector<std::string> supported_architectures();

}  // namespace ganglion::model_config

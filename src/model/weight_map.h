// Which tensors a model consists of: names and shapes from its configuration, checked against the file's
// header. Two kinds: vectors (norms, biases, sinks; always in memory, as floats) and matrices (rows of
// quantised blocks that may be streamed). Reads no data.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "format/gguf.h"
#include "kernels/kernel_table.h"
#include "model_config/model_config.h"

namespace ganglion::model {

inline constexpr uint32_t kAbsent = UINT32_MAX;

/// A matrix [slices][rows][cols]; slices are experts or heads. `index` is its place in WeightMap::matrices.
struct MatrixRef {
  uint32_t index = kAbsent;
  uint32_t rows = 0;  ///< Per slice.
  uint32_t cols = 0;
  uint32_t slices = 1;
  base::TensorType type = base::TensorType::kF32;
  bool present() const { return index != kAbsent; }
};

/// A vector of floats (or [slices][size]). `index` is its place in WeightMap::vectors.
struct VectorRef {
  uint32_t index = kAbsent;
  uint32_t size = 0;  ///< All elements.
  bool present() const { return index != kAbsent; }
};

/// The packed FFN of a layer: [E][F] bundles, most frequent neuron of each expert first (E = 1: dense FFN).
/// Either a predictor chooses neurons and each bundle begins with its gate, or all gates are computed.
/// Without a gate, the up matrix stands as the gates here too, and bundles have no ups.
struct BundleRef {
  MatrixRef gates;  ///< [E][F][D], in pack order; absent where there is a predictor.
  /// [E][F][D] of the first row of each bundle, gate or up, with the bundle's stride. Where bundles hold down
  /// rows alone, which exact passes do not use: the gates again.
  MatrixRef rows;
  VectorRef bias;  ///< [F]: added to the gates, in pack order. Of dense FFNs without a gate.
  base::TensorType up_type = base::TensorType::kF32;
  kernels::DownType down_type = kernels::DownType::kF32;
  uint32_t up_offset = 0;           ///< In a bundle.
  uint32_t down_offset = 0;         ///< Likewise, of the transposed down row.
  uint32_t bytes = 0;               ///< Of a bundle without padding.
  uint32_t stride = 0;              ///< From bundle to bundle on storage.
  MatrixRef predict_low;            ///< [E][rank][D]
  MatrixRef predict_out;            ///< [E][F][rank]
  bool rectified = false;           ///< Between the two, negative values become 0.
  VectorRef threshold;              ///< [E][F]: predicted active where the score is above it.
  VectorRef gate_threshold;         ///< [1]: a gate is open where its SiLU is larger in size; absent: ReLU.
  uint32_t tensor = kAbsent;        ///< Numbers in GgufModel::tensors: the bundles,
  uint32_t order_tensor = kAbsent;  ///< the neurons' original indices,
  uint32_t frequency_tensor = kAbsent;  ///< and their activation frequencies.
  bool present() const { return rows.present(); }
  bool rows_are_gates() const { return gates.present() && rows.index == gates.index; }
};

struct LayerWeights {
  VectorRef attn_norm, ffn_norm, post_attn_norm, post_ffn_norm;
  VectorRef attn_norm_bias, ffn_norm_bias;  ///< Of layer norms.
  MatrixRef q, k, v, qkv, o;
  VectorRef q_bias, k_bias, v_bias, qkv_bias, o_bias, q_norm, k_norm, sinks;
  // Multi-head latent attention.
  MatrixRef q_a, q_b, kv_a, k_b, v_b;
  VectorRef q_a_norm, kv_a_norm;
  // Dense FFN (gate_up: both in one), or the shared expert of an MoE layer.
  // Without a gate, the up matrix stands as `gate`: it is what the activation is applied to.
  MatrixRef gate, up, gate_up, down;
  VectorRef gate_bias, up_bias, down_bias;
  BundleRef bundle;  ///< Takes the place of gate and up, or of the experts' gates and ups.
  // Experts.
  MatrixRef router, expert_gate, expert_up, expert_down;
  VectorRef router_bias, selection_bias, expert_gate_bias, expert_up_bias, expert_down_bias;
};

/// Everything a forward pass touches, in the order in which it does.
struct WeightMap {
  uint32_t embedding_tensor = 0;  ///< Number in GgufModel::tensors; read row by row.
  MatrixRef output;               ///< The head, from the embedding's tensor where they are tied.
  VectorRef output_norm, output_norm_bias;
  VectorRef positions;  ///< [context][D], learned.
  VectorRef rope_factors, rope_factors_long, rope_factors_short;
  std::vector<LayerWeights> layers;
  std::vector<uint32_t> matrices;  ///< Tensor number of each matrix, in the order in which a pass uses them.
  std::vector<uint32_t> vectors;   ///< Likewise of each vector.
};

/// Resolves all tensors of `config` in `file`; sets config->vocab where the metadata has none.
/// Errors: kModelFile naming the tensor that is missing or has another shape than the metadata says (with the
/// keys that decide it); kUnsupported for a matrix of a type that cannot be computed with.
base::Result<WeightMap> map_weights(const format::GgufModel& file, model_config::ModelConfig* config);

}  // namespace ganglion::model

// Packs the FFN of one layer: order by frequency, predictors, bundles. Called by pack_model layer by layer.
#pragma once

#include <string>
#include <vector>

#include "calibration/activation_samples.h"
#include "calibration/model_source.h"
#include "calibration/predictor_fit.h"
#include "format/gguf_writer.h"
#include "ganglion/pack.h"
#include "kernels/kernel_table.h"

namespace ganglion::calibration {

/// One layer's matrices in the source, and how its bundles are laid out.
struct PackedLayer {
  FfnMatrices ffn;
  uint32_t rank = 0;
  bool carried = false;     ///< The predictor is the one that the model carries.
  bool sparsified = false;  ///< Gates are open by the size of their SiLU.
  uint32_t gate_bytes = 0;
  uint32_t up_bytes = 0;
  uint32_t down_bytes = 0;
  uint32_t stride = 0;

  /// Without a predictor all gates are computed: they are a matrix of their own.
  uint32_t up_offset() const { return rank > 0 ? gate_bytes : 0; }
  uint32_t down_offset() const { return up_offset() + up_bytes; }
  uint32_t bundle_bytes() const { return down_offset() + down_bytes; }
};

/// Offsets as docs/pack_format.md has them; a stride of whole pages where that wastes at most a fifth: a read
/// that crosses fewer pages is worth more than the disk's space, and memory holds no padding.
PackedLayer lay_out_bundles(const FfnMatrices& ffn, kernels::DownType down_type, uint32_t rank);

/// Errors: kInvalidArgument for a rank that predictors cannot have.
base::Status check_rank(uint32_t rank);

/// Errors: kInvalidArgument for a share of the activation mass that is none, or not a number.
base::Status check_recall(double recall);

/// Declares the layer's tensors in the order in which write_layer() fills them.
void declare_layer(const PackedLayer& layer, const std::string& prefix, format::GgufWriter* writer);

/// What a calibration says of a layer.
struct CalibratedLayer {
  LayerSamples samples;
  std::vector<float> frequency;  ///< [E][F]: share of all tokens that fire a neuron.
  float gate_threshold = 0;      ///< Of a sparsified layer.
};

struct FitOptions {
  kernels::DownType down_type = kernels::DownType::kQ6;
  double recall = 0.99;
};

/// What the predictors of a layer find, and the thresholds that they could have, at each level of recall.
class LayerThresholds {
 public:
  /// Experts in their order; sigma and value in pack order.
  void add_expert(const Predictor& predictor, std::span<const int32_t> order);
  /// [E][F] in pack order; kRecallLevels: everything is predicted.
  std::vector<float> at(size_t level, float gate_threshold) const;
  PackLayerReport report(size_t level) const;

 private:
  std::vector<float> offset_, sigma_, value_;  // [E][F]
  std::vector<Predictor> experts_;             // Without their factors.
};

/// Fits and writes everything that declare_layer() declared, with the thresholds of level 0.
/// Errors: kIo, kModelFile.
base::Result<LayerThresholds> write_layer(const PackedLayer& layer, const ModelSource& source,
                                          const FitOptions& options, const CalibratedLayer& calibrated,
                                          format::GgufWriter* writer);

/// Rank of a layer with the predictor that the model carries.
uint32_t carried_rank(const FfnMatrices& ffn);

/// Fits the predictors of a layer for what they find alone. Errors: kIo, kModelFile.
base::Result<PackLayerReport> judge_layer(const FfnMatrices& ffn, uint32_t rank, bool carried, double recall,
                                          const ModelSource& source, const LayerSamples& samples);

/// Memory that write_layer() takes at most, estimated from the buffers' sizes.
uint64_t fitting_bytes(const PackedLayer& layer, const ModelSource& source, size_t samples);

}  // namespace ganglion::calibration

// SiLU activations made sparse: small ones are left out (CATS, arXiv 2404.08663, with one threshold per
// layer). Lossy, so only where it is asked for.
#pragma once

#include <span>
#include <vector>

#include "base/status.h"
#include "calibration/activation_samples.h"
#include "calibration/model_source.h"

namespace ganglion::calibration {

struct SparsifiedLayer {
  std::vector<float> thresholds;  ///< Of |SiLU(gate)|, by share of the activations that are below.
  std::vector<float> frequency;   ///< [E][F]: share of all tokens for which a neuron's is above.
};

/// Thresholds that leave out the given shares of the activations of sample tokens, and the neurons'
/// frequencies at shares[counted]. Deterministic. Errors: kIo, kModelFile.
base::Result<SparsifiedLayer> sparsify_layer(const ModelSource& source, const FfnMatrices& ffn,
                                             const LayerSamples& samples, std::span<const double> shares,
                                             size_t counted);

}  // namespace ganglion::calibration

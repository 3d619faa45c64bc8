// How often neurons fire, and the second moments of what their FFN reads: counted by the exact gates over all
// tokens of a calibration.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "base/status.h"
#include "calibration/activation_samples.h"
#include "calibration/model_source.h"

namespace ganglion::calibration {

/// Batch sizes for which firing is counted.
inline constexpr uint32_t kBatches[] = {1, 2, 4, 8, 16, 32};
inline constexpr size_t kBatchCount = 6;

/// Batches of `size` that `tokens` tokens make. Their tokens stand `tokens / size` apart, so that they come
/// from different places of the text, as those of sequences evaluated together.
constexpr size_t batch_groups(size_t tokens, uint32_t size) {
  return tokens / size;
}

struct LayerStatistics {
  std::vector<int32_t> fired;   ///< [batches][E][F]: batches in which at least one token fires the neuron.
  std::vector<double> squares;  ///< [D]: sums of squares of the FFN's input.
  std::vector<int32_t> routed;  ///< [E]: tokens routed to each expert; of a dense FFN all tokens.
};

/// Counts one layer. `stop` is asked between experts and parts of the tokens (kCancelled). Memory: an
/// expert's gate (and up, with dReLU), the inputs of 4,096 tokens and a bit for each neuron of an expert and
/// token. Errors: kIo, kModelFile.
base::Result<LayerStatistics> count_layer(const ModelSource& source, const ActivationSamples& samples,
                                          size_t layer, const std::function<bool()>& stop);

/// Of a row of `tokens` bits, how many batches of `size` tokens, as batch_groups() makes them, have one set.
/// Requires: 8 bytes behind the last bit may be read.
size_t count_groups(const uint64_t* bits, size_t tokens, uint32_t size);

}  // namespace ganglion::calibration

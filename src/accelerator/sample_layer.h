// A small FFN layer of random bundles in a buffer of a backend: for measurements, the self-test and tests.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "accelerator/backend.h"

namespace ganglion::accelerator {

/// Bundles [neurons] of gate, up and down rows, each padded to the alignment.
struct SampleBundles {
  FfnLayer layer;
  uint32_t blocks = 0;
  uint32_t gate_bytes = 0;  ///< With padding,
  uint32_t up_bytes = 0;    ///< likewise.
  uint32_t stride = 0;
  std::vector<uint8_t> bytes;
};
SampleBundles random_bundles(const FfnLayer& layer, uint32_t blocks, uint64_t seed, uint32_t alignment = 1);

/// Adds the blocks, whose bundles lie in `buffer`, to a defined layer. Errors: those of the backend.
base::Status add_blocks(Backend& backend, const SampleBundles& bundles, BufferId buffer);
/// Writes the bundles to a buffer of their own and adds the layer. Errors: those of the backend.
base::Result<BufferId> upload(Backend& backend, const SampleBundles& bundles, uint32_t window);

/// A dot product and the sum of the absolute values of its terms.
struct Dot {
  double value = 0;
  double size = 0;
};
Dot dot(std::span<const float> row, const float* x);

/// What an FFN has to give, [tokens][D] each, in double precision.
struct FfnTruth {
  std::vector<double> out;
  /// The sizes of the terms of each element, which cancel in `out`: the absolute values of what the neurons
  /// add, of which gates and ups count as the sum of the absolute values of their own terms, one at a time.
  std::vector<double> sizes;
  std::vector<double> slack;  ///< What neurons near the threshold, whose gates may open or not, can add.
};
/// Of the first `blocks` blocks. A gate is near the threshold if it is within `near` times its size.
FfnTruth ffn_truth(const SampleBundles& bundles, uint32_t blocks, const std::vector<float>& x, double near);

}  // namespace ganglion::accelerator

// A small FFN layer in a buffer of a backend, for tests and the self-test: bundles of random rows.
#pragma once

#include <cstdint>
#include <vector>

#include "accelerator/backend.h"

namespace ganglion::accelerator {

/// Bundles [neurons] of gate, up and down rows, without padding.
struct TestBundles {
  FfnLayer layer;
  uint32_t blocks = 0;
  uint32_t gate_bytes = 0;
  uint32_t up_bytes = 0;
  uint32_t stride = 0;
  std::vector<uint8_t> bytes;
};
TestBundles random_bundles(const FfnLayer& layer, uint32_t blocks, uint64_t seed);

/// Writes the bundles to a buffer of their own and adds the layer. Errors: those of the backend.
base::Result<BufferId> upload(Backend& backend, const TestBundles& bundles, uint32_t window);

/// out [tokens][D] of the first `blocks` blocks in double precision; `slack` gets what neurons near the
/// threshold, whose gates may open or not, can add.
std::vector<double> exact_ffn(const TestBundles& bundles, uint32_t blocks, const std::vector<float>& x,
                              std::vector<double>* slack);

}  // namespace ganglion::accelerator

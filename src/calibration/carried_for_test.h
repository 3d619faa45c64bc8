// A predictor as TurboSparse's checkpoints carry it, for tests, that knows a layer's gates exactly.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace ganglion::calibration {

/// Hidden units are gates and negated gates of the input before the norm, out = 7 (unit - negated unit): the
/// sign of every gate.
struct CarriedForTest {
  /// `gates` [neurons][dim], `norm` [dim]. `extra` rows of fc2 too many make its shape wrong.
  CarriedForTest(std::span<const float> gates, std::span<const float> norm, size_t extra = 0)
      : dim(norm.size()),
        neurons(gates.size() / dim),
        fc1(2 * neurons * dim),
        fc2((neurons + extra) * 2 * neurons, 0) {
    for (size_t f = 0; f < neurons; ++f) {
      for (size_t d = 0; d < dim; ++d) {
        fc1[f * dim + d] = gates[f * dim + d] * norm[d];
        fc1[(neurons + f) * dim + d] = -fc1[f * dim + d];
      }
      fc2[f * 2 * neurons + f] = 7;
      fc2[f * 2 * neurons + neurons + f] = -7;
    }
  }

  size_t dim, neurons;
  std::vector<float> fc1;  ///< [2 neurons][dim]
  std::vector<float> fc2;  ///< [neurons + extra][2 neurons]
};

}  // namespace ganglion::calibration

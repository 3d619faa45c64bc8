// Rotary position embedding: frequencies of a configuration, and the rotation of heads.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model_config/model_config.h"

namespace ganglion::model {

/// Angles per position of one RopeConfig. Immutable; thread-safe.
class Rope {
 public:
  /// `factors` [dims/2] divide the frequencies (Llama 3, long-context Phi-3); empty: none.
  Rope(const model_config::RopeConfig& config, std::span<const float> factors);

  uint32_t dims() const { return dims_; }

  /// cos_sin [dims/2][2] of `position`, times the magnitude.
  /// Source: RoFormer (2104.09864); YaRN (2309.00071) section 3, correction range rounded to whole
  /// dimensions.
  void angles(int64_t position, float* cos_sin) const;

  /// Rotates `heads` heads, `stride` floats apart, in place: the first dims() elements of each.
  void rotate(float* x, size_t heads, size_t stride, const float* cos_sin) const;

 private:
  model_config::RopeStyle style_;
  uint32_t dims_;
  float magnitude_;
  std::vector<float> frequencies_;
};

}  // namespace ganglion::model

// Fits the predictor of one expert (or dense FFN): a low-rank stand-in for its gate, and a threshold per
// neuron.
//
// Source: truncated SVD of gate pre-activations over sample tokens (activation-weighted, as 2603.14110 does
// it for ReLU models), found by subspace iteration on the tokens' Gram matrix. Thresholds: a gate is taken to
// be normal around its score; a neuron is predicted where the square that it is expected to add to the output
// is worth the price of predicting it. So neurons that never fired in the sample have thresholds too.
//
// A predictor that the model was trained with (a small MLP, as TurboSparse has them) serves in its place:
// each neuron's scores are scaled to fit its gate best, and judged alike.
#pragma once

#include <span>
#include <vector>

#include "base/status.h"
#include "base/tensor_type.h"
#include "kernels/kernel_table.h"
#include "platform/threads.h"

namespace ganglion::calibration {

struct FitInput {
  const kernels::KernelTable* kernels = nullptr;
  platform::ThreadPool* threads = nullptr;
  base::TensorType gate_type = base::TensorType::kF32;
  base::TensorType up_type = base::TensorType::kF32;
  std::span<const uint8_t> gate;  ///< [F] rows of D.
  std::span<const uint8_t> up;    ///< [F] rows of D; empty: gates are multiplied by nothing.
  std::span<const float> bias;    ///< [F], added to the gates, which are without it in the matrix; or empty.
  bool rectified_up = false;      ///< A neuron fires only where both are positive.
  float threshold = 0;            ///< A gate has to be above it (FATReLU).
  size_t neurons = 0;
  size_t dim = 0;
  std::span<const float> inputs;     ///< [tokens][D]
  std::span<const float> down_norm;  ///< [F] of each neuron's down row.
  uint32_t rank = 0;
  /// A predictor that the model carries, or empty: scores are `mlp_out` [F][n] times the rectified product of
  /// `mlp_low` [n][D] and the input, n at most the rank.
  std::span<const float> mlp_low, mlp_out;
  double recall = 0.99;  ///< Of level 0.
};

/// Form of a predictor's second factor, which GGUF knows as Q4_0.
inline constexpr kernels::DownType kPredictorType = kernels::DownType::kQ4;

/// Level i is for predictors that miss 1 / 2^i of what the recall asked for allows.
inline constexpr size_t kRecallLevels = 8;

struct Predictor {
  struct Level {
    double worth = 0;  ///< Of a squared activation, in reads: for threshold_for().
    double recall = 1, mass_recall = 1, over_prediction = 0;  ///< As in PackLayerReport.
  };
  std::vector<uint8_t> low;      ///< [rank] Q8_0 rows of D.
  std::vector<float> out;        ///< [rank][F], nearly as kPredictorType will hold it.
  std::vector<float> offset;     ///< [F]: gates are scores and this, on the mean.
  std::vector<float> sigma;      ///< [F]: deviation of gates from that.
  std::vector<float> value;      ///< [F]: mean square that a gate of 1 adds to the output, over its price.
  std::vector<float> frequency;  ///< [F]: share of the sample tokens for which it fires.
  Level levels[kRecallLevels];
  double active = 0, top_30 = 0;  ///< As in PackLayerReport.
};

/// Share of all activations that the most frequent 30 % of the neurons have.
double top_30_share(std::span<const float> frequency);

/// The expected gate, score and offset, above which a neuron is predicted.
float threshold_for(float sigma, float value, double worth, float gate_threshold);

/// Memory that fit_predictor() takes beside its input, nearly.
uint64_t predictor_fit_bytes(size_t neurons, size_t dim, uint32_t rank, size_t tokens);

/// Without tokens every neuron is predicted never to fire. Deterministic.
Predictor fit_predictor(const FitInput& input);

}  // namespace ganglion::calibration

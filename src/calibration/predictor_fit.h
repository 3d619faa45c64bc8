// Fits the predictor of one expert (or dense FFN): a low-rank stand-in for its gate, and a threshold per
// neuron.
//
// Source: truncated SVD of gate pre-activations over sample tokens (activation-weighted, as 2603.14110 does
// it for ReLU models), found by subspace iteration on the tokens' Gram matrix; thresholds by the price of a
// read, see below.
#pragma once

#include <span>
#include <vector>

#include "base/status.h"
#include "base/tensor_type.h"
#include "ganglion/pack.h"
#include "kernels/kernel_table.h"
#include "platform/threads.h"

namespace ganglion::calibration {

struct FitInput {
  const kernels::KernelTable* kernels = nullptr;
  platform::ThreadPool* threads = nullptr;
  base::TensorType gate_type = base::TensorType::kF32;
  base::TensorType up_type = base::TensorType::kF32;
  std::span<const uint8_t> gate;  ///< [F] rows of D.
  std::span<const uint8_t> up;    ///< [F] rows of D.
  bool rectified_up = false;      ///< A neuron fires only where both are positive.
  float threshold = 0;            ///< A gate has to be above it (FATReLU).
  size_t neurons = 0;
  size_t dim = 0;
  std::span<const float> inputs;     ///< [tokens][D]
  std::span<const float> down_norm;  ///< [F] of each neuron's down row.
  uint32_t rank = 0;
  double recall = 0.99;
};

struct Predictor {
  std::vector<uint8_t> low;      ///< [rank] Q8_0 rows of D.
  std::vector<float> out;        ///< [rank][F], as 8 bits will hold it.
  std::vector<float> threshold;  ///< [F]; a neuron is predicted where its score is above.
  std::vector<float> frequency;  ///< [F]: share of the sample tokens for which it fires.
  PackLayerReport report;
};

/// Memory that fit_predictor() takes beside its input, nearly.
uint64_t predictor_fit_bytes(size_t neurons, size_t dim, uint32_t rank, size_t tokens);

/// Without tokens every neuron is predicted never to fire. Deterministic.
Predictor fit_predictor(const FitInput& input);

}  // namespace ganglion::calibration

// Runs a model with sparse FFN activations over a text and keeps what it did: how often neurons fire, and
// what predictors are fitted on. The file is described in docs/calibration_format.md; pack_model takes it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "ganglion/error.h"
#include "ganglion/text.h"

namespace ganglion {

/// Tokens that one run takes at most; more come together by merging.
inline constexpr size_t kMostCalibrationTokens = 65536;

struct CalibrateOptions {
  std::string model_path;   ///< A GGUF model with ReLU, dReLU or ReGLU activations.
  std::string output_path;  ///< Appears when it is complete.
  std::string memory = "auto";
  int threads = 0;
  std::string isa;
  std::string text_path;       ///< Empty: the text that is shipped.
  bool random_tokens = false;  ///< In place of a text, for synthetic models.
  size_t tokens = 4096;        ///< At most, spread evenly over the text.
  Overrides overrides;
  /// After an interruption the folder "<output>.calibrating" stays, and the same call goes on from it.
  bool resumable = true;
  /// Takes a SiLU model, too: its activations can be made sparse (PackOptions::sparsify).
  bool allow_silu = false;
  /// Predictors of these ranks (multiples of 32; larger than the model's width: left out) are fitted and
  /// judged for the report.
  std::vector<uint32_t> ranks;
  double recall = 0.99;  ///< Share of the activation mass that they must find.
};

/// How a predictor does on held-out tokens.
struct RankReport {
  uint32_t rank = 0;
  double recall = 0;           ///< Share of the firing neurons that it finds.
  double mass_recall = 0;      ///< The same by the mass of their activations.
  double over_prediction = 0;  ///< Predicted neurons per firing one.
};

struct CalibrationLayerReport {
  double active = 0;                    ///< Mean share of neurons that fire, of the experts that are used.
  double top_30 = 0;                    ///< Share of the activations that the most frequent 30 % have,
  double top_50 = 0;                    ///< and half of the neurons.
  std::vector<double> active_by_batch;  ///< Mean share of all neurons that some token of a batch fires.
  std::vector<RankReport> ranks;
};

struct CalibrationReport {
  std::string model;  ///< Fingerprint.
  size_t tokens = 0;
  size_t samples = 0;  ///< Tokens that predictors are fitted on.
  uint64_t bytes = 0;
  std::vector<uint32_t> batches;  ///< Of CalibrationLayerReport::active_by_batch.
  std::vector<CalibrationLayerReport> layers;
};

using StageProgress = bool (*)(void* context, const char* stage, uint64_t done, uint64_t total);

/// `progress` (or null) is told the stage, done and total, and may return false to stop (kCancelled).
/// Errors: kUnsupported (activations that are not sparse, a shape that cannot be packed), kModelFile,
/// kInvalidArgument (options; the state of another calibration beside the output), kResources, kIo.
Result<CalibrationReport> calibrate_model(const CalibrateOptions& options, StageProgress progress,
                                          void* context);

/// Joins calibrations of one model, made from different tokens: counts and moments add up, samples are
/// thinned evenly. Errors: kInvalidArgument (different models, the same tokens twice), kModelFile, kIo.
Result<CalibrationReport> merge_calibrations(const std::vector<std::string>& inputs,
                                             const std::string& output_path, StageProgress progress,
                                             void* context);

}  // namespace ganglion

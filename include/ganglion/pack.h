// Turns a model whose FFN activations are sparse into a pack: neurons as bundles, most frequent first, with
// predictors of which will fire. The format is described in docs/pack_format.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ganglion/error.h"
#include "ganglion/text.h"

namespace ganglion {

struct PackOptions {
  /// A GGUF model with ReLU, dReLU or ReGLU activations, or one of PowerInfer, of which a plain copy lies
  /// beside the output meanwhile.
  std::string model_path;
  std::string output_path;  ///< Appears when it is complete.
  std::string memory = "auto";
  int threads = 0;
  std::string isa;
  std::string calibration_path;  ///< Made of this very model by calibrate; empty: calibrated here,
  std::string text_path;         ///< on this text (empty: the one that is shipped)
  bool random_tokens = false;    ///< or on random tokens, for synthetic models (then nothing is measured),
  size_t tokens = 4096;          ///< at most so many.
  /// Type of the transposed down rows: q4, q6, q8, f16 or f32; auto: q6, q8 or f16, as the source; q4 of
  /// a PowerInfer model's rows of Q4_0.
  std::string down = "auto";
  /// Leaves out the down matrices as the source has them: a smaller file, whose prompts and exact passes use
  /// the transposed rows.
  bool slim = false;
  /// Of the predictors, a multiple of 32; 0: none, all gates are computed. Not given: 192 in layers where
  /// that makes less to read and compute, 0 in the others.
  std::optional<uint32_t> rank;
  /// "svd": fitted; "mlp": the one that the model carries; auto: by layer, whichever makes less to compute.
  std::string predictor = "auto";
  double recall = 0.99;  ///< Share of the activation mass that predictors must find, at least.
  /// Mean KL divergence in nat from exact passes that sparse ones may have, measured on tokens held out: the
  /// recall is raised until they keep it, or half as much again as without predictors. 0: not measured.
  double divergence = 0.0007;
  /// For SiLU models, lossy: "cats:0.5" leaves out the smaller half of the activations; "cats": as many as
  /// keep `divergence`. Empty: none.
  std::string sparsify;
  Overrides overrides;
};

struct PackLayerReport {
  double active = 0;           ///< Mean share of neurons that fire (of the experts that are used).
  double recall = 0;           ///< Share of the firing neurons that the predictor finds.
  double mass_recall = 0;      ///< The same by the mass of their activations.
  double over_prediction = 0;  ///< Predicted neurons per firing one.
  double top_30 = 0;           ///< Share of the activations that the most frequent 30 % of the neurons have.
};

struct PackReport {
  std::vector<PackLayerReport> layers;
  uint64_t bytes = 0;
  uint64_t predictor_bytes = 0;
  size_t tokens = 0;
  std::string down;
  std::vector<uint32_t> ranks;  ///< Of the layers.
  size_t carried = 0;           ///< Layers whose predictor is the one that the model carries.
  std::string source_note;      ///< What became of a PowerInfer model's down matrices; empty: of others.
  // Sparse passes against exact ones:
  size_t judged_tokens = 0;     ///< 0: not measured.
  double divergence = 0;        ///< Mean KL divergence in nat.
  double same_top = 0;          ///< Share of positions with the same most likely token.
  double least_divergence = 0;  ///< With every neuron computed; 0: not measured.
  double left_out = 0;          ///< Share of SiLU activations that sparse passes leave out.
};

/// `progress` (or null) is told the stage, done and total, and may return false to stop (kCancelled); nothing
/// is left behind then. Errors: kUnsupported (activations that are not sparse, a shape that cannot be
/// packed), kModelFile, kInvalidArgument, kResources (memory or disk space), kIo.
Result<PackReport> pack_model(const PackOptions& options,
                              bool (*progress)(void* context, const char* stage, uint64_t done,
                                               uint64_t total),
                              void* context);

}  // namespace ganglion

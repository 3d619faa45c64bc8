// How far a pack's sparse passes are from exact ones, on tokens that it was not calibrated on.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "ganglion/calibration.h"
#include "ganglion/divergence.h"
#include "ganglion/engine.h"

namespace ganglion::calibration {

struct Judgement {
  double divergence = 0;  ///< Mean KL divergence in nat.
  double same_top = 0;    ///< Share of positions with the same most likely token.
  size_t tokens = 0;
};

class PackJudge {
 public:
  /// `engine` opens the pack, which may change between judgements but for its exact passes; exact passes are
  /// those of `exact_path`. Their probabilities are kept in an unnamed file in `folder`. `progress` as in
  /// pack_model().
  PackJudge(EngineOptions engine, std::string exact_path, std::vector<int32_t> tokens,
            const std::string& folder, StageProgress progress, void* context)
      : options_(std::move(engine)),
        exact_path_(std::move(exact_path)),
        tokens_(std::move(tokens)),
        base_(folder),
        progress_(progress),
        context_(context) {}

  /// Errors: those of the engine; kIo; kCancelled.
  Result<Judgement> judge();

 private:
  Status run_windows(Engine& engine, bool sparse, LogitSink* sink);

  Result<std::unique_ptr<Engine>> open(const std::string& path) const;

  EngineOptions options_;
  std::string exact_path_;
  std::vector<int32_t> tokens_;
  ProbabilityFile base_;
  StageProgress progress_;
  void* context_;
  bool has_base_ = false;
};

}  // namespace ganglion::calibration

// The FFN inputs of a text, layer by layer, as the exact model computes them: collected in one run and kept
// in temporary files, so that one layer's are in memory at a time.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "ganglion/engine.h"

namespace ganglion::calibration {

/// Inputs [tokens][D] of a layer's FFN and, in MoE layers, the experts [tokens][used] that each was routed
/// to.
struct LayerSamples {
  std::vector<float> inputs;
  std::vector<uint32_t> experts;
};

/// Owns its temporary directory, which it removes.
class ActivationSamples {
 public:
  /// Runs `tokens` in sequences of up to 512. `directory` must not exist. Errors: those of the engine; kIo.
  static base::Result<std::unique_ptr<ActivationSamples>> collect(
      const EngineOptions& options, const std::vector<int32_t>& tokens, const std::string& directory,
      const std::function<bool(uint64_t done, uint64_t total)>& progress);
  ~ActivationSamples();

  size_t tokens() const { return tokens_; }
  base::Result<LayerSamples> read(size_t layer) const;

 private:
  ActivationSamples(std::string directory, size_t tokens)
      : directory_(std::move(directory)), tokens_(tokens) {}
  std::string path(size_t layer, const char* kind) const;

  std::string directory_;
  size_t tokens_;
  size_t layers_ = 0;
  friend class SampleSink;
};

}  // namespace ganglion::calibration

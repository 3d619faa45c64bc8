// The FFN inputs of a text, layer by layer, as the exact model computes them: kept in a folder on the disk,
// so that one layer's are in memory at a time and an interrupted run goes on where it stopped.
//
//   <folder>/state            what is being computed: model and tokens; locked while a process works on it
//   <folder>/layerN.inputs    [tokens][D] halves
//   <folder>/layerN.experts   [tokens][used] uint32, of MoE layers
//   <folder>/layerN.*         what later steps keep beside them
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "calibration/model_source.h"
#include "ganglion/engine.h"

namespace ganglion::calibration {

/// Of a range of tokens: inputs [tokens][D] of a layer's FFN and, in MoE layers, the experts [tokens][used]
/// that each was routed to.
struct LayerSamples {
  std::vector<float> inputs;
  std::vector<uint32_t> experts;
};

/// The inputs of the tokens that were routed to an expert (of a dense FFN: all).
std::vector<float> inputs_of_expert(const LayerSamples& samples, const FfnMatrices& ffn, uint32_t expert);

struct SampleOptions {
  EngineOptions engine;
  std::string folder;
  std::string identity;     ///< Of the computation: a folder that says otherwise is refused.
  bool keep_folder = true;  ///< When the work is not finished.
};

/// Owns the folder, and locks it. One thread at a time.
class ActivationSamples {
 public:
  /// Takes up the folder as it was left, or makes it. Errors: kInvalidArgument if it belongs to another
  /// computation or a process works on it; kIo.
  static base::Result<std::unique_ptr<ActivationSamples>> open(const SampleOptions& options,
                                                               const ModelSource& source, size_t tokens);
  ~ActivationSamples();
  ActivationSamples(const ActivationSamples&) = delete;
  ActivationSamples& operator=(const ActivationSamples&) = delete;

  /// Runs what is missing of `tokens`, in sequences of up to 512. Errors: those of the engine; kIo;
  /// kCancelled once `progress` says false.
  base::Status collect(const std::vector<int32_t>& tokens,
                       const std::function<bool(uint64_t done, uint64_t total)>& progress);

  size_t tokens() const { return tokens_; }
  /// Bytes of inputs and experts that the folder has.
  uint64_t kept_bytes() const;
  /// Of the given tokens, ascending numbers. Errors: kIo.
  base::Result<LayerSamples> read(size_t layer, size_t begin, size_t end) const;
  std::string path(size_t layer, const char* kind) const;
  /// The folder's work is done: it is removed with this object.
  void finish() { keep_ = false; }

 private:
  ActivationSamples(const SampleOptions& options, const ModelSource& source, size_t tokens);
  base::Status take_up();
  base::Status resume(size_t* done) const;

  SampleOptions options_;
  const ModelSource& source_;
  size_t tokens_;
  bool keep_;
  int lock_ = -1;
  friend class SampleSink;
};

}  // namespace ganglion::calibration

// A model whose FFN activations are sparse, opened to be calibrated or packed: header, files, the FFN
// matrices of each layer, and a fingerprint that ties calibrations to it. Reads slices; runs nothing.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "format/gguf.h"
#include "format/gguf_writer.h"
#include "format/model_fingerprint.h"
#include "ganglion/text.h"
#include "kernels/kernel_table.h"
#include "model_config/model_config.h"
#include "platform/file.h"
#include "platform/threads.h"

namespace ganglion::calibration {

/// The FFN of a layer: experts [E] of F neurons (E = 1: a dense FFN).
struct FfnMatrices {
  const format::TensorInfo* gate = nullptr;  ///< [E][F] rows of D
  const format::TensorInfo* up =
      nullptr;  ///< [E][F] rows of D; null: without a gate, `gate` is the up matrix
  const format::TensorInfo* down = nullptr;  ///< [E][D] rows of F
  const format::TensorInfo* bias = nullptr;  ///< [F], added to the gates; null: none
  uint32_t neurons = 0;                      ///< F
  uint32_t experts = 1;                      ///< E
  uint32_t used = 1;                         ///< Experts that a token is routed to.
  uint32_t dim = 0;                          ///< D
  // A predictor that the model carries (TurboSparse, PowerInfer), or null: it reads the input before the
  // norm.
  const format::TensorInfo* mlp_low = nullptr;  ///< n rows of D
  const format::TensorInfo* mlp_out = nullptr;  ///< [F] rows of n
  const format::TensorInfo* norm = nullptr;     ///< [D], of the FFN's input
  uint64_t up_bytes() const { return up == nullptr ? 0 : up->bytes; }
};

struct SourceOptions {
  std::string model_path;
  Overrides overrides;
  std::string isa;
  int threads = 0;
  bool allow_silu = false;  ///< Activations that sparsify_layer() can make sparse.
};

/// Immutable after opening; slices may be read from one thread.
class ModelSource {
 public:
  /// Errors: kUnsupported for activations that are not sparse, an FFN with a gate and biases or a shape that
  /// bundles do not hold; kInvalidArgument for a pack or unknown kernels; those of reading a header.
  static base::Result<std::unique_ptr<ModelSource>> open(const SourceOptions& options);

  const format::GgufModel& file() const { return *file_; }
  const model_config::ModelConfig& config() const { return config_; }
  const std::vector<FfnMatrices>& layers() const { return layers_; }
  const std::vector<platform::File>& files() const { return files_; }  ///< By shard.
  const kernels::KernelTable& kernels() const { return *kernels_; }
  platform::ThreadPool& threads() const { return *threads_; }
  bool rectified_up() const { return config_.activation == model_config::FfnActivation::kDRelu; }

  /// All bytes of an expert's matrix, which leave the page cache again. Errors: kIo, kModelFile.
  base::Status read_slice(const format::TensorInfo& tensor, uint32_t expert, std::vector<uint8_t>* out) const;

  /// A whole tensor as floats. Errors: kIo, kModelFile.
  base::Result<std::vector<float>> read_floats(const format::TensorInfo& tensor) const;

  /// The biases of a layer's gates, or nothing. Errors: kIo, kModelFile.
  base::Result<std::vector<float>> read_bias(const FfnMatrices& ffn) const {
    if (ffn.bias == nullptr) return std::vector<float>();
    return read_floats(*ffn.bias);
  }

  /// format::model_fingerprint() of it. Errors: kIo, kModelFile.
  base::Result<std::string> fingerprint() const { return format::model_fingerprint(*file_, files_); }

 private:
  ModelSource() = default;
  base::Status read_header(const SourceOptions& options);
  base::Status choose_layers(const SourceOptions& options);
  base::Status find_carried_predictors();

  std::unique_ptr<format::GgufModel> file_;
  model_config::ModelConfig config_;
  std::vector<FfnMatrices> layers_;
  std::vector<platform::File> files_;
  const kernels::KernelTable* kernels_ = nullptr;
  std::unique_ptr<platform::ThreadPool> threads_;
};

/// A tensor's bytes as they are, slice by slice, which leave the page cache again. Errors: kIo, kModelFile.
base::Status copy_tensor(const platform::File& file, const format::TensorInfo& tensor,
                         format::GgufWriter* writer);

/// Fails with kResources where `need_bytes` beside what the process has are more than `memory` (as of --mem;
/// "min" never is). `what` takes them, `advice` says what to do.
base::Status check_memory(const std::string& memory, uint64_t need_bytes, const std::string& what,
                          const std::string& advice);

/// Fails with kResources where the folder of `path` has less than `need_bytes` left; `what` names them.
/// Errors: also kIo where there is no such folder.
base::Status check_free_space(const std::string& path, uint64_t need_bytes, const std::string& what);

}  // namespace ganglion::calibration

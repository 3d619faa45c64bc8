// Calibration files (docs/calibration_format.md): what the exact model did on a text. Written by calibrate
// and merge, read by pack. A file is checked when it is opened and again as its numbers are read.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "calibration/activation_samples.h"
#include "calibration/activation_statistics.h"
#include "format/gguf.h"
#include "format/gguf_writer.h"

namespace ganglion::calibration {

/// Tokens whose FFN inputs a file keeps at most: predictors are fitted on them, all tokens are counted.
inline constexpr size_t kMostSamples = 16384;

struct LayerShape {
  uint32_t neurons = 0;  ///< F, of an expert
  uint32_t experts = 1;  ///< E
  uint32_t used = 1;
  uint32_t dim = 0;  ///< D
  bool moe = false;
  bool operator==(const LayerShape&) const = default;
};

struct CalibrationHeader {
  std::string model;  ///< ModelSource::fingerprint()
  std::string model_name;
  size_t tokens = 0;
  size_t samples = 0;
  std::vector<uint64_t> groups;      ///< By batch size: how many batches were counted.
  std::vector<std::string> sources;  ///< token_fingerprint() of each run that is part of it.
  std::vector<LayerShape> layers;
};

/// The number of the token whose inputs are sample `i` of `samples`.
constexpr size_t sample_token(size_t i, size_t samples, size_t tokens) {
  return samples == tokens ? i : i * tokens / samples;
}

/// Declares metadata and all tensors; their data follow layer by layer: statistics, inputs, experts.
void declare_calibration(const CalibrationHeader& header, format::GgufWriter* writer);
base::Status write_statistics(const LayerStatistics& statistics, bool moe, format::GgufWriter* writer);
/// Bytes of everything that declare_calibration() declares but the header.
uint64_t calibration_bytes(const CalibrationHeader& header);

/// An open file. One thread.
class CalibrationFile {
 public:
  /// Errors: kModelFile for a file that is none, is cut short or contradicts itself; kUnsupported for a newer
  /// version.
  static base::Result<std::unique_ptr<CalibrationFile>> open(const std::string& path);

  const std::string& path() const { return path_; }
  const CalibrationHeader& header() const { return header_; }
  /// Errors: kIo, kModelFile for counts that cannot be.
  base::Result<LayerStatistics> statistics(size_t layer) const;
  /// Of all samples. Errors: kIo, kModelFile.
  base::Result<LayerSamples> samples(size_t layer, const kernels::KernelTable& kernels) const;
  /// The stored row of one sample: its inputs (halves), or its experts. Errors: kIo.
  base::Status read_row(size_t layer, bool experts, size_t sample, std::vector<uint8_t>* out) const;
  /// Errors: kInvalidArgument if the file is of another model than `source`.
  base::Status check_model(const ModelSource& source) const;

 private:
  explicit CalibrationFile(std::string path) : path_(std::move(path)) {}
  base::Status read_header();
  base::Status read_layer_shape(size_t layer);
  base::Result<const format::TensorInfo*> tensor(size_t layer, const char* name, base::TensorType type) const;
  template <typename T>
  base::Status read_values(const format::TensorInfo& tensor, std::vector<T>* out) const;
  base::Status wrong(const std::string& what) const;

  std::string path_;
  std::unique_ptr<format::GgufModel> file_;
  std::vector<platform::File> files_;
  CalibrationHeader header_;
};

/// The shapes of a model's layers.
std::vector<LayerShape> layer_shapes(const ModelSource& source);

}  // namespace ganglion::calibration

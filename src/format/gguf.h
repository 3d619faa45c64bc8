// GGUF files: parses and checks headers, joins the shards of a split model. Reads no tensor data.
// Every count and offset is checked against the file's size before it is used, so that a damaged or hostile
// file costs neither memory nor time. Called by engine/ (through neuron_store/), cli/ and tools.
// Source: the GGUF specification, versions 2 and 3 (little-endian).
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/metadata.h"
#include "base/status.h"
#include "base/tensor_type.h"
#include "platform/file.h"

namespace ganglion::format {

/// A tensor as the header lists it. `dims[0]` is the row length (elements of a row lie together).
struct TensorInfo {
  std::string name;
  base::TensorType type = base::TensorType::kF32;
  uint32_t dim_count = 0;
  uint64_t dims[4] = {1, 1, 1, 1};
  uint32_t shard = 0;
  uint64_t offset = 0;  ///< In bytes from the start of the shard's file.
  uint64_t bytes = 0;

  uint64_t elements() const { return dims[0] * dims[1] * dims[2] * dims[3]; }
  /// "[576, 49152]"
  std::string shape() const;
};

struct ShardInfo {
  std::string path;
  uint64_t file_bytes = 0;
  uint64_t data_offset = 0;
  uint32_t version = 0;
  size_t tensor_count = 0;
  bool powerinfer = false;  ///< The magic is "PWRI" in place of "GGUF".
};

/// A model's header: metadata of the first shard, tensors of all. Immutable but for `metadata()`.
class GgufModel {
 public:
  /// Opens a file, any shard of a split model, or a directory that holds one model.
  /// Errors: kModelFile for anything missing or wrong with the files, naming the shard, tensor or key with
  /// what was found and expected; kUnsupported for a tensor type or version that is not known.
  static base::Result<GgufModel> open(const std::string& path);
  /// Opens one file alone, whatever it says of being a part. Errors: as open().
  static base::Result<GgufModel> open_single(const std::string& file_path);

  const base::Metadata& metadata() const { return metadata_; }
  base::Metadata& metadata() { return metadata_; }
  const std::vector<TensorInfo>& tensors() const { return tensors_; }
  const std::vector<ShardInfo>& shards() const { return shards_; }
  const TensorInfo* find_tensor(std::string_view name) const;
  uint64_t file_bytes() const;
  /// A model as PowerInfer's tools write it: format/powerinfer.h says what is different.
  bool powerinfer() const { return shards_[0].powerinfer; }
  /// The same files under another header. Requires: names that differ.
  GgufModel with_header(base::Metadata metadata, std::vector<TensorInfo> tensors) const;

 private:
  base::Status add_shard(const std::string& path, bool keep_metadata, base::Metadata* metadata);

  base::Metadata metadata_;
  std::vector<TensorInfo> tensors_;
  std::map<std::string, size_t, std::less<>> index_;
  std::vector<ShardInfo> shards_;
};

/// The paths of all shards that `path` (a file, a shard or a directory) stands for, the first one first,
/// judged by names alone; a file that is no shard stands for itself.
base::Result<std::vector<std::string>> resolve_model_files(const std::string& path);

}  // namespace ganglion::format

// The weight files of a Hugging Face directory: one model.safetensors, or shards with an index.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/status.h"
#include "format/safetensors.h"
#include "platform/file.h"

namespace ganglion::convert {

struct CheckpointTensor {
  format::SafeTensor info;
  size_t file = 0;  ///< In Checkpoint::files.
};

struct Checkpoint {
  std::vector<platform::File> files;
  std::map<std::string, CheckpointTensor, std::less<>> tensors;

  /// Errors: kModelFile (a missing shard, a tensor that the index or two shards contradict, damaged files),
  /// kUnsupported (weights in another format), kNotFound, kIo.
  static base::Result<Checkpoint> open(const std::string& directory);
};

}  // namespace ganglion::convert

// Copies one tensor from a checkpoint into a GGUF file, slice by slice: reads, puts rows in order, converts.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "convert/architecture.h"
#include "convert/checkpoint.h"
#include "format/gguf_writer.h"

namespace ganglion::convert {

/// A planned tensor with what the checkpoint holds for it.
struct ResolvedTensor {
  const PlannedTensor* plan = nullptr;
  std::vector<const CheckpointTensor*> sources;    ///< Empty where plan->values are the data.
  base::TensorType type = base::TensorType::kF32;  ///< To be written.
  uint64_t rows = 0;                               ///< Of each source that are written; vectors: 1.
  uint64_t cols = 0;

  std::vector<uint64_t> gguf_dims() const;
  uint64_t bytes() const;
};

/// Writes the data. Memory: a few slices of at most 4 MiB, or of one head.
/// Errors: kModelFile (a value that is not finite), kUnsupported (one that F16 cannot hold), kIo.
base::Status copy_tensor(const Checkpoint& checkpoint, const ResolvedTensor& tensor,
                         format::GgufWriter* writer);

}  // namespace ganglion::convert

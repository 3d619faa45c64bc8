// Headers of safetensors files, hardened: after read_safetensors every tensor lies within its file, has the
// size that its shape and type say, and overlaps no other. Reads no data.
// Source: the format's description at huggingface.co/docs/safetensors.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "base/tensor_type.h"
#include "platform/file.h"

namespace ganglion::format {

struct SafeTensor {
  std::string name;
  std::string_view dtype;                ///< As the file says, for example "BF16".
  std::optional<base::TensorType> type;  ///< F32, F16 and BF16 only.
  std::vector<uint64_t> shape;           ///< Slowest dimension first; empty: one element.
  uint64_t elements = 0;
  uint64_t offset = 0;  ///< In the file.
  uint64_t bytes = 0;

  /// "[320, 128]"
  std::string shape_text() const;
};

/// The tensors of one file in the order of their data.
/// Errors: kModelFile naming the file and what is wrong in it; kUnsupported for a dtype that is not known.
base::Result<std::vector<SafeTensor>> read_safetensors(const platform::File& file);

}  // namespace ganglion::format

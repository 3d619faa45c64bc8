// Turns a directory as Hugging Face models are downloaded into a GGUF file. Reads local files only.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ganglion/error.h"

namespace ganglion {

struct ConvertOptions {
  std::string directory;      ///< With config.json, *.safetensors and the tokenizer's files.
  std::string output_path;    ///< Appears when it is complete.
  std::string type;           ///< Of matrices: f32, f16, bf16, q8_0, q4_0; empty: each as it is stored.
  std::string pre_tokenizer;  ///< GGUF's name of the pre-tokenizer; empty: found from tokenizer.json.
};

struct ConvertReport {
  std::string architecture;             ///< Of the GGUF file.
  std::string activation;               ///< silu, relu, drelu or fatrelu.
  uint64_t tensors = 0;                 ///< In the GGUF file.
  uint64_t bytes = 0;                   ///< Of their data.
  std::vector<std::string> skipped;     ///< Tensors that were left out because nothing uses them.
  std::vector<std::string> other_type;  ///< Tensors whose rows the type's blocks do not divide: F16.
};

/// `progress` (or null) is told the bytes done and in total, and may return false to stop (kCancelled);
/// nothing is left behind then. Memory: the tokenizer's files and a few slices of a tensor, at most about 4
/// MiB each. Errors: kModelFile (damaged, missing or contradictory files), kUnsupported (an architecture,
/// activation, tokenizer or tensor that is not known), kInvalidArgument (type), kResources (disk space), kIo.
Result<ConvertReport> convert_model(const ConvertOptions& options,
                                    bool (*progress)(void* context, uint64_t done, uint64_t total),
                                    void* context);

}  // namespace ganglion

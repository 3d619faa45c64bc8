// What becomes of a Hugging Face model: its keys in a GGUF file, and where each GGUF tensor comes from. From
// config.json alone; one table of architectures, one function per layout of tensors.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "format/gguf_writer.h"
#include "format/json.h"

namespace ganglion::convert {

/// A tensor to write: its sources one after the other (several for the experts of a layer).
struct PlannedTensor {
  std::string name;                  ///< In the GGUF file.
  std::vector<std::string> sources;  ///< In the checkpoint; empty where `values` are the data.
  std::vector<uint64_t> shape = {};  ///< Of each source, rows first; 0: any.
  /// Query and key rows: a head's halves are rotated together in Hugging Face's layout, neighbours in GGUF's
  /// for llama. This many heads get their rows interleaved; 0: rows stay.
  uint64_t interleaved_heads = 0;
  uint64_t skip_rows = 0;     ///< At the start, which are not written.
  bool optional = false;      ///< Left out where the checkpoint has it not.
  bool is_embedding = false;  ///< Embedding or head: at least 8 bits in quantised files.
  bool is_small = false;      ///< Stays F32 in quantised files (routers).
  std::vector<float> values = {};
};

struct ModelPlan {
  std::string architecture;  ///< Of the GGUF file.
  std::string activation;    ///< silu, relu, drelu or fatrelu.
  uint64_t vocab = 0;        ///< Rows of the embedding.
  bool tied = false;         ///< The head is the embedding; a stored head is ignored.
  std::vector<PlannedTensor> tensors;
};

/// Reads `config` (the document at `path`) and writes the keys of the architecture.
/// Errors: kUnsupported for an architecture or feature that is not known; kModelFile for a missing or
/// contradictory field.
base::Result<ModelPlan> plan_model(const format::Json& config, const std::string& path,
                                   format::GgufWriter* writer);

/// Likewise of OPT, whose layout is its own. For plan_model.
base::Result<ModelPlan> plan_opt(const format::Json& config, const std::string& path,
                                 format::GgufWriter* writer);

}  // namespace ganglion::convert

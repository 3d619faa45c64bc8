// Models as PowerInfer's tools write them: GGUF files with the magic "PWRI". Their FFNs are rectified, which
// nothing else in the file says; their down matrices lie transposed (`ffn_down_t`: row f is what neuron f
// adds to the output); and they carry predictors (`fc1`, `fc2`), whose threshold is
// `powerinfer.sparse_threshold`. OPT's table of positions begins with two rows that no position uses, as in
// Hugging Face's. Translates headers into those of plain models; moves no data. Called by pack and by verify.
// Source: how the public converters of that project write such files.
#pragma once

#include <string>

#include "base/status.h"
#include "format/gguf.h"

namespace ganglion::format {

/// Type of a down matrix whose transpose has the type given: the same where elements stand alone, else F16,
/// since blocks cannot be transposed without rounding.
base::TensorType plain_down_type(base::TensorType transposed);

/// The header of the plain model: tensors with the place of their data in the source, but of
/// `ffn_down_t.weight` [D, F], which becomes `ffn_down.weight` [F, D] of plain_down_type(). OPT's predictors
/// are left out: nothing of ours can use what reads the input before a layer norm. Keys of the file's own
/// (`ganglion.ffn.activation`) are kept. Requires: source.powerinfer(). Errors: kUnsupported for another
/// architecture than llama, bamboo and opt; kModelFile for down matrices that are no matrices, or there
/// twice, and for positions that are none.
base::Result<GgufModel> plain_header(const GgufModel& source);

/// The transposed matrix that a tensor of plain_header() is made of, or null.
const TensorInfo* transposed_source(const GgufModel& source, const TensorInfo& plain);

/// kUnsupported, with what to do, for a PowerInfer model: only pack reads them. `path`: for the message.
base::Status refuse_powerinfer(const GgufModel& model, const std::string& path);

}  // namespace ganglion::format

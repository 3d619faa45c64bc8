// Models as PowerInfer's tools write them: GGUF files with the magic "PWRI". Their FFNs are rectified, which
// nothing else in the file says; their down matrices lie transposed (`ffn_down_t`: row f is what neuron f
// adds to the output); and they carry predictors (`fc1`, `fc2`), whose threshold is
// `powerinfer.sparse_threshold`. Translates headers into those of plain models; moves no data. Called by pack
// and by verify. Source: how the public converters of that project write such files.
#pragma once

#include <string>

#include "base/status.h"
#include "format/gguf.h"

namespace ganglion::format {

/// Type of a down matrix whose transpose has the type given: the same where elements stand alone, else F16,
/// since blocks cannot be transposed without rounding.
base::TensorType plain_down_type(base::TensorType transposed);

/// The header of the plain model: tensors in the order of the source, each with the place of its data there;
/// `ffn_down_t.weight` [D, F] becomes `ffn_down.weight` [F, D] of plain_down_type(). Keys of the file's own
/// (`ganglion.ffn.activation`) are kept. Requires: source.powerinfer().
/// Errors: kUnsupported for another architecture than llama and bamboo; kModelFile for down matrices that are
/// no matrices, or there twice.
base::Result<GgufModel> plain_header(const GgufModel& source);

/// kUnsupported, with what to do, for a PowerInfer model: only pack reads them. `path`: for the message.
base::Status refuse_powerinfer(const GgufModel& model, const std::string& path);

}  // namespace ganglion::format

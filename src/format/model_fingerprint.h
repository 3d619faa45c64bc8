// What tells models apart: ties calibrations and saved key-value caches to the model they were made with.
#pragma once

#include <span>
#include <string>

#include "base/status.h"
#include "format/gguf.h"

namespace ganglion::format {

/// SHA-256, as hex, over the hyper-parameters (keys of the architecture and "ganglion.ffn."), and of each
/// tensor its name, type, shape and 4 KiB at its beginning and in its middle: the same however the file is
/// split. `files` by shard. Errors: kIo, kModelFile.
base::Result<std::string> model_fingerprint(const GgufModel& model, std::span<const platform::File> files);

}  // namespace ganglion::format

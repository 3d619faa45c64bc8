// Keys and values of a sequence in a file, so that a long prompt need not be evaluated again: a GGUF file, by
// docs/kv_format.md. Called by sessions; knows nothing of slots.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "model/kv_cache.h"
#include "model_config/model_config.h"

namespace ganglion::engine {

/// What keys and values depend on besides the tokens; a file is refused where any of it differs.
struct KvOrigin {
  std::string model;  ///< format::model_fingerprint()
  std::string model_name;
  kernels::KvType type = kernels::KvType::kF16;
  bool sparse = false;  ///< Generated tokens were evaluated with predicted neurons.
};

/// Writes `sequence`, whose tokens are `tokens`, to `path`, atomically: until it is whole, `path` is what it
/// was. Returns the bytes of the file. Errors: kResources if they exceed `most_bytes`, kIo.
base::Result<uint64_t> save_sequence(const std::string& path, const model_config::ModelConfig& config,
                                     const KvOrigin& origin, const model::KvSequence& sequence,
                                     std::span<const int32_t> tokens, uint64_t most_bytes);

/// Replaces a sequence and returns its tokens. `make_room(pages)` is called when the sequence is empty,
/// before so many pages are taken from the pool. Errors: kNotFound, kModelFile (damaged, or no such file),
/// kInvalidArgument (of another model or kind), kContextOverflow, kIo, kResources; the sequence is as it was
/// if make_room was not called, else empty.
base::Result<std::vector<int32_t>> restore_sequence(const std::string& path,
                                                    const model_config::ModelConfig& config,
                                                    const KvOrigin& origin, size_t context,
                                                    const std::function<base::Status(size_t)>& make_room,
                                                    model::KvSequence* sequence);

}  // namespace ganglion::engine

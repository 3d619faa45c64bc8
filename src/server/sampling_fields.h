// The fields of a request that say how to choose tokens, in OpenAI's and llama-server's names.
#pragma once

#include "ganglion/text.h"
#include "server/generation_task.h"
#include "server/json.h"

namespace ganglion::server {

/// Fills `generation` (sampling, limits, stops, choices). Values absent stay as they are.
/// Errors: kInvalidArgument with the field's name.
Status read_sampling(const Json& request, const TextModel& text, Generation* generation);

/// Names the first field of `names` that is present with a value that asks for something.
/// Errors: kInvalidArgument, "field: is not supported".
Status refuse_fields(const Json& request, std::initializer_list<const char*> names);

}  // namespace ganglion::server

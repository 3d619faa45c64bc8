// Prompts that are given as text, as tokens, or as a mixture.
#pragma once

#include "server/endpoint.h"

namespace ganglion::server {

/// Reads "prompt": a text, a list of tokens and texts that make one prompt, or a list of prompts.
/// Errors: kInvalidArgument, kContextOverflow.
Status read_prompts(const Json& request, const ServedModel& model, Generation* generation);

/// Reads one prompt of any form; `where` names it in errors.
Result<std::vector<int32_t>> read_prompt_tokens(const Json& prompt, const std::string& where,
                                                const ServedModel& model);

/// Whether a list is one prompt of tokens and texts, not a list of prompts.
bool is_token_list(const Json& list);

}  // namespace ganglion::server

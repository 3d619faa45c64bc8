// What a client is told when a request fails, and the one table from Status to HTTP.
#pragma once

#include <string>

#include "ganglion/error.h"
#include "server/json.h"

namespace ganglion::server {

struct ApiError {
  int http = 500;
  std::string type = "server_error";
  std::string message;
  Json extra = Json::object();  ///< Further fields of the error object.
};

ApiError api_error(const Status& status);

ApiError bad_request(std::string message);
/// Names both numbers and has the text "context_length_exceeded", which clients look for.
ApiError context_error(size_t prompt_tokens, size_t context);

/// {"error": {"code", "message", "type", ...}} as OpenAI's clients read it.
Json openai_error(const ApiError& error);
/// {"type": "error", "error": {...}} as Anthropic's clients read it.
Json anthropic_error(const ApiError& error);

}  // namespace ganglion::server

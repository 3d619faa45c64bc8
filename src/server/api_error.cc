#include "server/api_error.h"

namespace ganglion::server {

ApiError api_error(const Status& status) {
  ApiError error;
  error.message = status.message();
  switch (status.code()) {
    case Code::kInvalidArgument:
      error.http = 400;
      error.type = "invalid_request_error";
      break;
    case Code::kContextOverflow:
      error.http = 400;
      error.type = "exceed_context_size_error";
      break;
    case Code::kNotFound:
      error.http = 404;
      error.type = "not_found_error";
      break;
    case Code::kUnsupported:
      error.http = 501;
      error.type = "not_supported_error";
      break;
    case Code::kResources:
    case Code::kCancelled:
      error.http = 503;
      error.type = "unavailable_error";
      break;
    case Code::kOk:
    case Code::kModelFile:
    case Code::kIo:
    case Code::kPoisoned:
    case Code::kDevice:
    case Code::kInternal:
      break;
  }
  return error;
}

ApiError bad_request(std::string message) {
  return api_error(Status(Code::kInvalidArgument, std::move(message)));
}

ApiError context_error(size_t prompt_tokens, size_t context) {
  ApiError error = api_error(Status(
      Code::kContextOverflow, "the prompt of " + std::to_string(prompt_tokens) +
                                  " tokens leaves no room in the context of " + std::to_string(context) +
                                  " tokens (context_length_exceeded) - shorten it, or start the server with "
                                  "a larger -c"));
  error.extra = {{"n_prompt_tokens", prompt_tokens}, {"n_ctx", context}};
  return error;
}

Json openai_error(const ApiError& error) {
  Json object = {{"code", error.http}, {"message", error.message}, {"type", error.type}};
  object.update(error.extra);
  return {{"error", object}};
}

Json anthropic_error(const ApiError& error) {
  const char* type = "api_error";
  if (error.http == 400 || error.http == 413 || error.http == 501) type = "invalid_request_error";
  if (error.http == 401) type = "authentication_error";
  if (error.http == 403) type = "permission_error";
  if (error.http == 404 || error.http == 405) type = "not_found_error";
  if (error.http == 429) type = "rate_limit_error";
  if (error.http == 503) type = "overloaded_error";
  Json object = {{"type", type}, {"message", error.message}};
  object.update(error.extra);
  return {{"type", "error"}, {"error", object}};
}

}  // namespace ganglion::server

#include "server/prompts.h"

#include <algorithm>

namespace ganglion::server {

namespace {

constexpr size_t kMostPrompts = 64;
// Splitting a text into tokens takes memory by its length: what cannot fit the context is refused unread.
constexpr size_t kMostBytesPerToken = 64;

Status append_text(const std::string& text, const ServedModel& model, bool begins,
                   std::vector<int32_t>* tokens) {
  if (text.size() / kMostBytesPerToken > model.context) {
    return Status(Code::kContextOverflow,
                  "a prompt of " + std::to_string(text.size()) + " bytes cannot fit the context of " +
                      std::to_string(model.context) + " tokens (context_length_exceeded)");
  }
  const Result<std::vector<int32_t>> part = model.text.encode(text, begins, true);
  if (!part.ok()) return part.status();
  tokens->insert(tokens->end(), part.value().begin(), part.value().end());
  return ok_status();
}

}  // namespace

bool is_token_list(const Json& list) {
  return list.is_array() && !list.empty() &&
         std::any_of(list.begin(), list.end(), [](const Json& entry) { return entry.is_number(); });
}

Result<std::vector<int32_t>> read_prompt_tokens(const Json& prompt, const std::string& where,
                                                const ServedModel& model) {
  std::vector<int32_t> tokens;
  const Json parts = prompt.is_array() ? prompt : Json::array({prompt});
  for (const Json& part : parts) {
    if (part.is_string()) {
      const Status status = append_text(part.get<std::string>(), model, tokens.empty(), &tokens);
      if (!status.ok()) return status.code() == Code::kInvalidArgument ? status.with_context(where) : status;
      continue;
    }
    if (!part.is_number_integer())
      return Status(Code::kInvalidArgument, where + ": must be a text, or a list of tokens and texts");
    const auto token = part.get<int64_t>();
    if (token < 0 || token >= model.text.vocab_size())
      return Status(Code::kInvalidArgument, where + ": token " + std::to_string(token) +
                                                " is outside the vocabulary of " +
                                                std::to_string(model.text.vocab_size()));
    tokens.push_back(static_cast<int32_t>(token));
  }
  if (tokens.empty() && model.text.bos() >= 0) tokens.push_back(model.text.bos());
  return tokens;
}

Status read_prompts(const Json& request, const ServedModel& model, Generation* generation) {
  const Json* prompt = Fields(request).find("prompt");
  if (prompt == nullptr) return Status(Code::kInvalidArgument, "prompt: is missing");
  const bool several = prompt->is_array() && !is_token_list(*prompt);
  const Json list = several ? *prompt : Json::array({*prompt});
  if (list.empty() || list.size() > kMostPrompts)
    return Status(Code::kInvalidArgument,
                  "prompt: must be 1 to " + std::to_string(kMostPrompts) + " prompts");
  for (size_t i = 0; i < list.size(); ++i) {
    Result<std::vector<int32_t>> tokens =
        read_prompt_tokens(list[i], several ? "prompt[" + std::to_string(i) + "]" : "prompt", model);
    if (!tokens.ok()) return tokens.status();
    generation->prompts.push_back(tokens.take());
  }
  return ok_status();
}

}  // namespace ganglion::server

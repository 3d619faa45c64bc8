// From messages to the text that the model reads. All interfaces bring their messages into OpenAI's form
// first.
#pragma once

#include <string>
#include <vector>

#include "server/endpoint.h"
#include "server/output_parser.h"

namespace ganglion::server {

/// A chat in OpenAI's form.
struct ChatInput {
  Json messages = Json::array();
  Json tools = nullptr;          ///< A list, or null.
  Json kwargs = Json::object();  ///< Further variables of the template.
  bool add_generation_prompt = true;
};

/// What "tool_choice" asks for.
enum class ToolChoice { kAuto, kNone, kRequired };

struct ChatPrompt {
  std::string text;
  std::vector<int32_t> tokens;
  bool begins_in_reasoning = false;
};

/// Reads "messages", "tools", "chat_template_kwargs" and the like. Errors: kInvalidArgument.
Status read_chat(const Json& request, ChatInput* input);

/// Renders and tokenizes. Errors: as render_chat; kUnsupported where the model has no template;
/// kInvalidArgument for content that is no text.
Result<ChatPrompt> make_chat_prompt(const ServedModel& model, const ChatInput& input);

}  // namespace ganglion::server

// Which tools a chat may or must call, and how its output is to be read.
#pragma once

#include "server/chat_prompt.h"

namespace ganglion::server {

struct ToolUse {
  ToolChoice choice = ToolChoice::kAuto;
  std::string name;  ///< The one tool that must be called, if so.
};

/// From a request in chat completions' words to a generation: sampling, messages, tools, grammar, prompt, and
/// how the answer is to be read. The caller adds the sink. Errors: those of its parts; a prompt that does not
/// fit the context.
std::optional<ApiError> prepare_chat(const Json& request, const ServedModel& model, Generation* generation,
                                     OutputFormat* format);

/// Reads "tool_choice"; "none" takes the tools away. Errors: kInvalidArgument.
Status read_tool_use(const Json& request, ChatInput* input, ToolUse* use);

/// Where a tool must be called, restricts the answer to calls that fit the tools' schemas. Errors: as
/// read_grammar; kInvalidArgument together with another grammar.
Status require_tool(const ServedModel& model, const ChatInput& input, const ToolUse& use,
                    Generation* generation);

/// How the answer is parsed. Errors: kInvalidArgument ("reasoning_format").
Status choose_format(const Json& request, const ServedModel& model, const ChatInput& input,
                     const ChatPrompt& prompt, OutputFormat* format, Generation* generation);

}  // namespace ganglion::server

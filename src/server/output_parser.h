// Splits what a model writes into content, reasoning and tool calls, as it comes. One format per model
// family, told from its chat template. Knows no JSON library: arguments are passed on as they were written.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace ganglion::server {

/// How a family writes tool calls.
enum class ToolFormat {
  kNone,     ///< Nothing is parsed.
  kHermes,   ///< <tool_call>{"name", "arguments"}</tool_call>: Hermes, Qwen.
  kLlama3,   ///< {"name", "parameters"}, after <|python_tag|> or as the whole answer.
  kMistral,  ///< [TOOL_CALLS][{"name", "arguments"}] or [TOOL_CALLS]name[ARGS]{...}
  kDeepSeek,  ///< <｜tool▁call▁begin｜>function<｜tool▁sep｜>name ```json {...} ```<｜tool▁call▁end｜>
  kHarmony,  ///< gpt-oss: channels; commentary to=functions.name.
  kGeneric,  ///< The whole answer is {"name", "arguments"}, several of them, or a list of them.
};

/// The format that a template's own words for tool calls show; kGeneric if they show none.
ToolFormat tool_format_of(std::string_view chat_template);

struct OutputFormat {
  ToolFormat tools = ToolFormat::kNone;
  bool reasoning = false;            ///< <think> ... </think> before the answer.
  bool begins_in_reasoning = false;  ///< The prompt ended with <think>.
};

struct OutputDelta {
  enum class Kind { kContent, kReasoning, kToolStart, kToolArguments };
  Kind kind = Kind::kContent;
  std::string text;  ///< Content, reasoning, a piece of arguments, or the tool's name.
  size_t tool = 0;   ///< Index of the call.
};

/// One per choice. The concatenated arguments of a call are the JSON text that the model wrote.
class OutputParser {
 public:
  static std::unique_ptr<OutputParser> create(const OutputFormat& format);
  virtual ~OutputParser() = default;
  virtual void push(std::string_view text, std::vector<OutputDelta>* deltas) = 0;
  /// What was held back; text that began like a call but is none becomes content.
  virtual void finish(std::vector<OutputDelta>* deltas) = 0;
};

}  // namespace ganglion::server

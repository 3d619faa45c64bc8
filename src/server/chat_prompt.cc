#include "server/chat_prompt.h"

#include "ganglion/chat.h"

namespace ganglion::server {

namespace {

constexpr size_t kMostBytesPerToken = 64;

Status invalid(const std::string& message) {
  return Status(Code::kInvalidArgument, message);
}

// A list of text parts becomes one text.
Status flatten_content(const std::string& where, Json& content) {
  if (content.is_string()) return ok_status();
  if (!content.is_array()) return invalid(where + ".content: must be a string or a list of parts");
  std::string text;
  bool first = true;
  for (const Json& part : content) {
    if (!part.is_object() || !part.contains("type") || !part["type"].is_string())
      return invalid(where + ".content: a part must be an object with a type");
    const auto type = part["type"].get<std::string>();
    const char* field = type == "refusal" ? "refusal" : "text";
    if (type != "text" && type != "input_text" && type != "output_text" && type != "refusal")
      return invalid(where + ".content: a part of type '" + type + "' is not supported, only text");
    if (!part.contains(field) || !part[field].is_string())
      return invalid(where + ".content: a part of type '" + type + "' has no " + field);
    text += (first ? "" : "\n") + part[field].get<std::string>();
    first = false;
  }
  content = text;
  return ok_status();
}

// Templates want objects; OpenAI's clients send arguments as JSON text.
Status check_calls(const std::string& where, const Json& calls) {
  if (!calls.is_array()) return invalid(where + ".tool_calls: must be a list");
  for (const Json& call : calls) {
    const bool good = call.is_object() && call.contains("function") && call["function"].is_object() &&
                      call["function"].contains("name") && call["function"]["name"].is_string();
    if (!good) return invalid(where + ".tool_calls: a call needs function.name");
  }
  return ok_status();
}

Status normalise_message(const std::string& where, Json& message) {
  if (!message.is_object()) return invalid(where + ": must be an object");
  for (auto at = message.begin(); at != message.end();) {
    if (at->is_null()) {
      at = message.erase(at);
    } else {
      ++at;
    }
  }
  if (!message.contains("role") || !message["role"].is_string()) return invalid(where + ": has no role");
  const auto role = message["role"].get<std::string>();
  if (role == "developer") message["role"] = "system";
  if (role == "function") message["role"] = "tool";
  if (role == "assistant" && message.contains("tool_calls")) {
    const Status status = check_calls(where, message["tool_calls"]);
    if (!status.ok()) return status;
    if (message["tool_calls"].empty()) message.erase("tool_calls");
  }
  if (!message.contains("content")) {
    if (role != "assistant") return invalid(where + ": has no content");
    message["content"] = "";
  }
  return flatten_content(where, message["content"]);
}

Status check_tools(const Json& tools) {
  if (!tools.is_array()) return invalid("tools: must be a list");
  for (const Json& tool : tools) {
    if (!tool.is_object()) return invalid("tools: a tool must be an object");
    if (tool.value("type", Json("function")) != "function")
      return invalid("tools: only tools of type function are supported");
    const bool good = tool.contains("function") && tool["function"].is_object() &&
                      tool["function"].contains("name") && tool["function"]["name"].is_string();
    if (!good) return invalid("tools: a tool needs function.name");
  }
  return ok_status();
}

// Where the template has no words for tools, a system message has.
void describe_tools(Json& messages, const Json& tools) {
  std::string text =
      "You can call these functions. To call one, answer with nothing but a JSON object of the form "
      "{\"name\": \"the function's name\", \"arguments\": {...}}.\nFunctions:";
  for (const Json& tool : tools) text += "\n" + to_text(tool["function"]);
  if (!messages.empty() && messages[0]["role"] == "system") {
    messages[0]["content"] = messages[0]["content"].get<std::string>() + "\n\n" + text;
  } else {
    messages.insert(messages.begin(), Json{{"role", "system"}, {"content", text}});
  }
}

// Arguments as objects, where they are JSON text of one.
Json with_object_arguments(const Json& messages) {
  Json changed = messages;
  for (Json& message : changed) {
    if (!message.contains("tool_calls")) continue;
    for (Json& call : message["tool_calls"]) {
      Json& function = call["function"];
      if (!function.contains("arguments") || !function["arguments"].is_string()) continue;
      const Result<Json> parsed = parse_json(function["arguments"].get<std::string>());
      if (parsed.ok() && parsed.value().is_object()) function["arguments"] = parsed.value();
    }
  }
  return changed;
}

Result<std::string> render(const ServedModel& model, const ChatInput& input, const Json& messages,
                           const Json& tools) {
  const TextModel& text = model.text;
  Json kwargs = {{"add_generation_prompt", input.add_generation_prompt}};
  kwargs.update(input.kwargs);
  const Json request = {
      {"messages", messages},
      {"tools", tools},
      {"kwargs", kwargs},
      {"special_tokens",
       {{"bos_token", text.token_name(text.bos())}, {"eos_token", text.token_name(text.eos())}}}};
  return render_chat(model.chat_template, to_text(request));
}

}  // namespace

Status read_chat(const Json& request, ChatInput* input) {
  Fields fields(request);
  const Json* messages = fields.find("messages");
  if (messages == nullptr || !messages->is_array() || messages->empty())
    return invalid("messages: must be a list of at least one message");
  input->messages = *messages;
  for (size_t i = 0; i < input->messages.size(); ++i) {
    const Status status = normalise_message("messages[" + std::to_string(i) + "]", input->messages[i]);
    if (!status.ok()) return status;
  }
  if (const Json* tools = fields.find("tools")) {
    const Status status = check_tools(*tools);
    if (!status.ok()) return status;
    if (!tools->empty()) input->tools = *tools;
  }
  if (const Json* kwargs = fields.find("chat_template_kwargs")) {
    if (!kwargs->is_object()) return invalid("chat_template_kwargs: must be an object");
    input->kwargs = *kwargs;
  }
  if (const Json* effort = fields.find("reasoning_effort")) {
    if (!input->kwargs.contains("reasoning_effort")) input->kwargs["reasoning_effort"] = *effort;
  }
  fields.read("add_generation_prompt", &input->add_generation_prompt);
  return fields.status();
}

Result<ChatPrompt> make_chat_prompt(const ServedModel& model, const ChatInput& input) {
  if (model.chat_template.empty()) {
    return Status(Code::kUnsupported,
                  "the model has no chat template - start the server with --chat-template-file, or use "
                  "/v1/completions");
  }
  Json messages = input.messages;
  Json tools = input.tools;
  if (!tools.is_null() && model.chat_template.find("tools") == std::string::npos) {
    describe_tools(messages, tools);
    tools = nullptr;
  }
  Result<std::string> rendered = render(model, input, with_object_arguments(messages), tools);
  // Some templates put arguments together as text.
  if (rendered.status().code() == Code::kInvalidArgument) {
    const Result<std::string> as_text = render(model, input, messages, tools);
    if (as_text.ok()) rendered = as_text;
  }
  if (!rendered.ok()) {
    // What a template cannot do with a request is no fault of the file's.
    return rendered.status();
  }
  ChatPrompt prompt;
  prompt.text = rendered.take();
  if (prompt.text.size() / kMostBytesPerToken > model.context) {
    return Status(Code::kContextOverflow, "the prompt of " + std::to_string(prompt.text.size()) +
                                              " bytes cannot fit the context of " +
                                              std::to_string(model.context) +
                                              " tokens (context_length_exceeded)");
  }
  Result<std::vector<int32_t>> tokens = model.text.encode(prompt.text, false, true);
  if (!tokens.ok()) return tokens.status();
  prompt.tokens = tokens.take();
  constexpr std::string_view kThink = "<think>";
  const size_t end = prompt.text.find_last_not_of(" \n\t\r");
  if (input.add_generation_prompt && end != std::string::npos && end + 1 >= kThink.size())
    prompt.begins_in_reasoning = prompt.text.compare(end + 1 - kThink.size(), kThink.size(), kThink) == 0;
  return prompt;
}

}  // namespace ganglion::server

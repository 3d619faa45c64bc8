// POST /v1/messages and /v1/messages/count_tokens: Anthropic's interface.
#include <utility>

#include "server/chat_prompt.h"
#include "server/endpoint.h"
#include "server/tool_choice.h"

namespace ganglion::server {

namespace {

Status invalid(const std::string& message) {
  return Status(Code::kInvalidArgument, message);
}

std::string text_field(const Json& object, const char* name) {
  const auto at = object.find(name);
  return at != object.end() && at->is_string() ? at->get<std::string>() : "";
}

// A text, or a list of text blocks.
Result<std::string> plain_text(const Json& content, const std::string& where) {
  if (content.is_string()) return content.get<std::string>();
  if (content.is_null()) return std::string();
  if (!content.is_array()) return invalid(where + ": must be a text or a list of text blocks");
  std::string text;
  for (const Json& block : content) {
    if (!block.is_object() || text_field(block, "type") != "text")
      return invalid(where + ": only blocks of type text are supported");
    text += (text.empty() ? "" : "\n") + text_field(block, "text");
  }
  return text;
}

// Adds one message with blocks as one or several of OpenAI's form.
Status add_blocks(const std::string& role, const Json& blocks, const std::string& where, Json* messages) {
  Json message = {{"role", role}, {"content", ""}};
  std::string text;
  bool any_text = false;
  for (const Json& block : blocks) {
    const std::string type = block.is_object() ? text_field(block, "type") : "";
    if (type == "text") {
      text += (any_text ? "\n" : "") + text_field(block, "text");
      any_text = true;
    } else if (type == "thinking") {
      message["reasoning_content"] = text_field(block, "thinking");
    } else if (type == "redacted_thinking") {
      continue;
    } else if (type == "tool_use" && role == "assistant") {
      const Json input = block.contains("input") ? block["input"] : Json::object();
      message["tool_calls"].push_back(
          {{"id", text_field(block, "id")},
           {"type", "function"},
           {"function", {{"name", text_field(block, "name")}, {"arguments", to_text(input)}}}});
    } else if (type == "tool_result" && role == "user") {
      const Result<std::string> result =
          plain_text(block.contains("content") ? block["content"] : Json(nullptr), where + ".tool_result");
      if (!result.ok()) return result.status();
      messages->push_back({{"role", "tool"},
                           {"tool_call_id", text_field(block, "tool_use_id")},
                           {"content", result.value()}});
    } else {
      return invalid(where + ": a block of type '" + type + "' is not supported here");
    }
  }
  message["content"] = text;
  if (any_text || role == "assistant") messages->push_back(message);
  return ok_status();
}

Status convert_messages(const Json& request, Json* converted) {
  Json messages = Json::array();
  if (request.contains("system")) {
    const Result<std::string> system = plain_text(request["system"], "system");
    if (!system.ok()) return system.status();
    if (!system.value().empty()) messages.push_back({{"role", "system"}, {"content", system.value()}});
  }
  const Json* list = Fields(request).find("messages");
  if (list == nullptr || !list->is_array() || list->empty())
    return invalid("messages: must be a list of at least one message");
  for (size_t i = 0; i < list->size(); ++i) {
    const Json& message = (*list)[i];
    const std::string where = "messages[" + std::to_string(i) + "]";
    if (!message.is_object()) return invalid(where + ": must be an object");
    const std::string role = text_field(message, "role");
    if (role != "user" && role != "assistant" && role != "system")
      return invalid(where + ".role: must be user or assistant");
    if (!message.contains("content")) return invalid(where + ": has no content");
    if (!message["content"].is_array()) {
      messages.push_back({{"role", role}, {"content", message["content"]}});
      continue;
    }
    const Status status = add_blocks(role, message["content"], where + ".content", &messages);
    if (!status.ok()) return status;
  }
  (*converted)["messages"] = std::move(messages);
  return ok_status();
}

Status convert_tools(const Json& request, Json* converted) {
  const Json* tools = Fields(request).find("tools");
  if (tools == nullptr) return ok_status();
  if (!tools->is_array()) return invalid("tools: must be a list");
  Json list = Json::array();
  for (const Json& tool : *tools) {
    if (!tool.is_object() || text_field(tool, "name").empty()) return invalid("tools: a tool needs a name");
    const std::string type = text_field(tool, "type");
    if (!type.empty() && type != "custom")
      return invalid("tools: a tool of type '" + type + "' is not supported, only the client's own");
    Json function = {{"name", tool["name"]}, {"description", text_field(tool, "description")}};
    if (tool.contains("input_schema")) function["parameters"] = tool["input_schema"];
    list.push_back({{"type", "function"}, {"function", function}});
  }
  (*converted)["tools"] = std::move(list);
  const Json* choice = Fields(request).find("tool_choice");
  if (choice == nullptr) return ok_status();
  const std::string type = choice->is_object() ? text_field(*choice, "type") : "";
  if (type == "auto" || type == "none") {
    (*converted)["tool_choice"] = type;
  } else if (type == "any") {
    (*converted)["tool_choice"] = "required";
  } else if (type == "tool") {
    (*converted)["tool_choice"] = {{"type", "function"},
                                   {"function", {{"name", text_field(*choice, "name")}}}};
  } else {
    return invalid("tool_choice.type: must be auto, any, tool or none");
  }
  return ok_status();
}

// The request in OpenAI's words.
Result<Json> convert(const Json& request) {
  Json converted = Json::object();
  Status status = convert_messages(request, &converted);
  if (status.ok()) status = convert_tools(request, &converted);
  if (!status.ok()) return status;
  for (const char* name : {"max_tokens", "temperature", "top_p", "top_k", "stream", "seed", "min_p",
                           "chat_template_kwargs", "response_format", "grammar", "json_schema"}) {
    if (request.contains(name)) converted[name] = request[name];
  }
  if (request.contains("stop_sequences")) converted["stop"] = request["stop_sequences"];
  const Json* thinking = Fields(request).find("thinking");
  if (thinking != nullptr && thinking->is_object()) {
    Json& kwargs = converted["chat_template_kwargs"];
    if (kwargs.is_null()) kwargs = Json::object();
    if (kwargs.is_object() && !kwargs.contains("enable_thinking"))
      kwargs["enable_thinking"] = text_field(*thinking, "type") != "disabled";
  }
  return converted;
}

/// One content block of the answer.
struct Block {
  enum class Kind { kText, kThinking, kTool };
  Kind kind = Kind::kText;
  std::string text;  ///< Or the tool's input as JSON text.
  std::string id;
  std::string name;

  Json json() const {
    if (kind == Kind::kText) return {{"type", "text"}, {"text", text}};
    if (kind == Kind::kThinking) return {{"type", "thinking"}, {"thinking", text}, {"signature", ""}};
    const Result<Json> input = parse_json(text);
    const bool good = input.ok() && input.value().is_object();
    return {{"type", "tool_use"},
            {"id", id},
            {"name", name},
            {"input", good ? input.value() : Json{{"malformed_input", text}}}};
  }
};

class MessageSink final : public ReplySink {
 public:
  MessageSink(std::shared_ptr<Reply> reply, const ServedModel& model, const OutputFormat& format,
              bool streams, size_t prompt_tokens)
      : ReplySink(std::move(reply), streams),
        model_(model),
        parser_(OutputParser::create(format)),
        id_(new_id("msg_")),
        prompt_tokens_(prompt_tokens) {}

  void started() override {
    if (!streams_) return;
    begin_stream("event: ping\ndata: {\"type\": \"ping\"}\n\n");
    Json message = skeleton();
    message["usage"] = {{"input_tokens", prompt_tokens_},
                        {"cache_creation_input_tokens", 0},
                        {"cache_read_input_tokens", 0},
                        {"output_tokens", 0}};
    send_event("message_start", {{"type", "message_start"}, {"message", message}});
  }

  void text(size_t, std::string_view text, std::span<const TokenProbs>, const ChoiceFacts&) override {
    std::vector<OutputDelta> deltas;
    parser_->push(text, &deltas);
    for (const OutputDelta& delta : deltas) add(delta);
  }

  void finished(size_t, const ChoiceFacts& facts) override {
    facts_ = facts;
    std::vector<OutputDelta> deltas;
    parser_->finish(&deltas);
    for (const OutputDelta& delta : deltas) add(delta);
    close_block();
  }

  void completed() override {
    const Json usage = {{"input_tokens", facts_.prompt_tokens - facts_.cached_tokens},
                        {"cache_creation_input_tokens", 0},
                        {"cache_read_input_tokens", facts_.cached_tokens},
                        {"output_tokens", facts_.tokens}};
    if (streams_) {
      send_event("message_delta",
                 {{"type", "message_delta"},
                  {"delta", {{"stop_reason", stop_reason()}, {"stop_sequence", stop_sequence()}}},
                  {"usage", usage}});
      send_event("message_stop", {{"type", "message_stop"}});
      return reply_->end_stream();
    }
    Json message = skeleton();
    for (const Block& block : blocks_) message["content"].push_back(block.json());
    message["stop_reason"] = stop_reason();
    message["stop_sequence"] = stop_sequence();
    message["usage"] = usage;
    message["timings"] = timings_json(facts_);
    reply_->respond_json(200, message);
  }

 protected:
  Json error_body(const ApiError& error) const override { return anthropic_error(error); }
  std::string error_event(const ApiError& error) const override {
    return "event: error\ndata: " + to_text(anthropic_error(error)) + "\n\n";
  }

 private:
  Json skeleton() const {
    return {{"id", id_},
            {"type", "message"},
            {"role", "assistant"},
            {"model", model_.name},
            {"content", Json::array()},
            {"stop_reason", nullptr},
            {"stop_sequence", nullptr}};
  }

  std::string stop_reason() const {
    if (facts_.finish == Finish::kLength) return "max_tokens";
    if (!facts_.stop_text.empty()) return "stop_sequence";
    for (const Block& block : blocks_) {
      if (block.kind == Block::Kind::kTool) return "tool_use";
    }
    return "end_turn";
  }

  Json stop_sequence() const { return facts_.stop_text.empty() ? Json(nullptr) : Json(facts_.stop_text); }

  size_t index() const { return blocks_.size() - 1; }

  void close_block() {
    if (!std::exchange(open_, false) || !streams_) return;
    send_event("content_block_stop", {{"type", "content_block_stop"}, {"index", index()}});
  }

  void open_block(Block block) {
    close_block();
    open_ = true;
    blocks_.push_back(std::move(block));
    if (!streams_) return;
    Json shown = blocks_.back().json();
    if (blocks_.back().kind == Block::Kind::kTool) shown["input"] = Json::object();
    send_event("content_block_start",
               {{"type", "content_block_start"}, {"index", index()}, {"content_block", shown}});
  }

  void add(const OutputDelta& delta) {
    if (delta.kind == OutputDelta::Kind::kToolStart) {
      return open_block({.kind = Block::Kind::kTool, .text = "", .id = new_id("toolu_"), .name = delta.text});
    }
    Block::Kind kind = Block::Kind::kText;
    Json json = {{"type", "text_delta"}, {"text", delta.text}};
    if (delta.kind == OutputDelta::Kind::kReasoning) {
      kind = Block::Kind::kThinking;
      json = {{"type", "thinking_delta"}, {"thinking", delta.text}};
    } else if (delta.kind == OutputDelta::Kind::kToolArguments) {
      kind = Block::Kind::kTool;
      json = {{"type", "input_json_delta"}, {"partial_json", delta.text}};
    }
    if (!open_ || blocks_.back().kind != kind) open_block({.kind = kind, .text = "", .id = "", .name = ""});
    blocks_.back().text += delta.text;
    if (!streams_) return;
    send_event("content_block_delta", {{"type", "content_block_delta"}, {"index", index()}, {"delta", json}});
  }

  const ServedModel& model_;
  std::unique_ptr<OutputParser> parser_;
  const std::string id_;
  const size_t prompt_tokens_;
  std::vector<Block> blocks_;
  bool open_ = false;
  ChoiceFacts facts_;
};

}  // namespace

std::optional<ApiError> messages(Call& call) {
  const Result<Json> converted = convert(call.request);
  if (!converted.ok()) return api_error(converted.status());
  const Json& request = converted.value();
  auto generation = std::make_unique<Generation>();
  generation->sampling = call.model.sampling;
  OutputFormat format;
  bool streams = false;
  Fields fields(request);
  fields.read("stream", &streams);
  if (!fields.has("max_tokens")) fields.fail("max_tokens", "is missing");
  if (!fields.status().ok()) return api_error(fields.status());
  if (auto error = prepare_chat(request, call.model, generation.get(), &format)) return error;
  generation->sink =
      std::make_unique<MessageSink>(call.reply, call.model, format, streams, generation->prompts[0].size());
  submit(call, std::move(generation));
  return std::nullopt;
}

std::optional<ApiError> count_message_tokens(Call& call) {
  const Result<Json> converted = convert(call.request);
  if (!converted.ok()) return api_error(converted.status());
  ChatInput input;
  const Status status = read_chat(converted.value(), &input);
  if (!status.ok()) return api_error(status);
  const Result<ChatPrompt> prompt = make_chat_prompt(call.model, input);
  if (!prompt.ok()) return api_error(prompt.status());
  call.reply->respond_json(200, {{"input_tokens", prompt.value().tokens.size()}});
  return std::nullopt;
}

}  // namespace ganglion::server

// POST /v1/responses: OpenAI's newer interface, without state: the client sends the whole conversation.
#include <utility>

#include "server/endpoint.h"
#include "server/sampling_fields.h"
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

// Calls that stand next to each other are of one assistant message.
void add_call(const Json& item, Json* messages) {
  const Json call = {
      {"id", text_field(item, "call_id")},
      {"type", "function"},
      {"function", {{"name", text_field(item, "name")}, {"arguments", text_field(item, "arguments")}}}};
  if (messages->empty() || messages->back()["role"] != "assistant")
    messages->push_back({{"role", "assistant"}, {"content", ""}});
  messages->back()["tool_calls"].push_back(call);
}

Status convert_input(const Json& request, Json* converted) {
  Json messages = Json::array();
  const std::string instructions = text_field(request, "instructions");
  if (!instructions.empty()) messages.push_back({{"role", "system"}, {"content", instructions}});
  const Json* input = Fields(request).find("input");
  if (input == nullptr) return invalid("input: is missing");
  if (input->is_string()) {
    messages.push_back({{"role", "user"}, {"content", *input}});
  } else if (input->is_array() && !input->empty()) {
    for (size_t i = 0; i < input->size(); ++i) {
      const Json& item = (*input)[i];
      const std::string where = "input[" + std::to_string(i) + "]";
      if (!item.is_object()) return invalid(where + ": must be an object");
      const std::string type = item.contains("type") ? text_field(item, "type") : "message";
      if (type == "message") {
        messages.push_back({{"role", text_field(item, "role")},
                            {"content", item.contains("content") ? item["content"] : Json(nullptr)}});
      } else if (type == "function_call") {
        add_call(item, &messages);
      } else if (type == "function_call_output") {
        messages.push_back({{"role", "tool"},
                            {"tool_call_id", text_field(item, "call_id")},
                            {"content", item.contains("output") ? item["output"] : Json("")}});
      } else if (type != "reasoning") {
        return invalid(where + ": an item of type '" + type + "' is not supported");
      }
    }
  } else {
    return invalid("input: must be a text or a list of items");
  }
  (*converted)["messages"] = std::move(messages);
  return ok_status();
}

Status convert_tools(const Json& request, Json* converted) {
  if (const Json* tools = Fields(request).find("tools")) {
    if (!tools->is_array()) return invalid("tools: must be a list");
    Json list = Json::array();
    for (const Json& tool : *tools) {
      if (!tool.is_object() || text_field(tool, "type") != "function")
        return invalid("tools: only tools of type function are supported");
      Json function = tool;
      function.erase("type");
      list.push_back({{"type", "function"}, {"function", function}});
    }
    (*converted)["tools"] = std::move(list);
  }
  if (const Json* choice = Fields(request).find("tool_choice")) {
    (*converted)["tool_choice"] =
        choice->is_object()
            ? Json{{"type", "function"}, {"function", {{"name", text_field(*choice, "name")}}}}
            : *choice;
  }
  return ok_status();
}

// The request in the words of chat completions.
Result<Json> convert(const Json& request) {
  Json converted = Json::object();
  Status status = refuse_fields(request, {"previous_response_id", "conversation", "background", "prompt"});
  if (status.ok()) status = convert_input(request, &converted);
  if (status.ok()) status = convert_tools(request, &converted);
  if (!status.ok()) return status;
  for (const char* name : {"temperature", "top_p", "top_k", "min_p", "seed", "stream", "parallel_tool_calls",
                           "chat_template_kwargs", "grammar", "json_schema"}) {
    if (request.contains(name)) converted[name] = request[name];
  }
  if (request.contains("max_output_tokens")) converted["max_tokens"] = request["max_output_tokens"];
  if (const Json* reasoning = Fields(request).find("reasoning")) {
    if (reasoning->is_object() && reasoning->contains("effort"))
      converted["reasoning_effort"] = (*reasoning)["effort"];
  }
  if (const Json* text = Fields(request).find("text")) {
    if (text->is_object() && text->contains("format")) {
      Json format = (*text)["format"];
      if (format.is_object() && text_field(format, "type") == "json_schema")
        format = {{"type", "json_schema"}, {"json_schema", format}};
      converted["response_format"] = format;
    }
  }
  return converted;
}

/// One item of the output.
struct Item {
  enum class Kind { kMessage, kReasoning, kCall };
  Kind kind = Kind::kMessage;
  std::string id;
  std::string text;  ///< Or a call's arguments.
  std::string call_id;
  std::string name;

  Json part() const {
    if (kind == Kind::kReasoning) return {{"type", "reasoning_text"}, {"text", text}};
    return {
        {"type", "output_text"}, {"text", text}, {"annotations", Json::array()}, {"logprobs", Json::array()}};
  }

  Json json(const char* status) const {
    switch (kind) {
      case Kind::kReasoning:
        return {{"type", "reasoning"},
                {"id", id},
                {"summary", Json::array()},
                {"content", Json::array({part()})}};
      case Kind::kCall:
        return {{"type", "function_call"}, {"id", id},        {"call_id", call_id}, {"name", name},
                {"arguments", text},       {"status", status}};
      case Kind::kMessage:
        break;
    }
    return {{"type", "message"},
            {"id", id},
            {"status", status},
            {"role", "assistant"},
            {"content", Json::array({part()})}};
  }
};

class ResponseSink final : public ReplySink {
 public:
  ResponseSink(std::shared_ptr<Reply> reply, const ServedModel& model, const OutputFormat& format,
               bool streams, const Json& request)
      : ReplySink(std::move(reply), streams),
        model_(model),
        parser_(OutputParser::create(format)),
        id_(new_id("resp_")),
        created_(unix_seconds()),
        request_(request) {}

  void started() override {
    if (!streams_) return;
    begin_stream(": keep-alive\n\n");
    tell("response.created", {{"response", response("in_progress")}});
    tell("response.in_progress", {{"response", response("in_progress")}});
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
    close_item();
  }

  void completed() override {
    const bool whole = facts_.finish != Finish::kLength;
    Json body = response(whole ? "completed" : "incomplete");
    if (!whole) body["incomplete_details"] = {{"reason", "max_output_tokens"}};
    for (const Item& item : items_) body["output"].push_back(item.json(whole ? "completed" : "incomplete"));
    body["usage"] = {{"input_tokens", facts_.prompt_tokens},
                     {"input_tokens_details", {{"cached_tokens", facts_.cached_tokens}}},
                     {"output_tokens", facts_.tokens},
                     {"output_tokens_details", {{"reasoning_tokens", 0}}},
                     {"total_tokens", facts_.prompt_tokens + facts_.tokens}};
    body["timings"] = timings_json(facts_);
    if (!streams_) return reply_->respond_json(200, body);
    tell(whole ? "response.completed" : "response.incomplete", {{"response", body}});
    reply_->end_stream();
  }

 protected:
  std::string error_event(const ApiError& error) const override {
    const Json data = {{"type", "error"},
                       {"code", error.type},
                       {"message", error.message},
                       {"param", nullptr},
                       {"sequence_number", sequence_}};
    return "event: error\ndata: " + to_text(data) + "\n\n";
  }

 private:
  Json or_null(const char* name) const { return request_.contains(name) ? request_[name] : Json(nullptr); }

  Json response(const char* status) const {
    return {{"id", id_},
            {"object", "response"},
            {"created_at", created_},
            {"status", status},
            {"error", nullptr},
            {"incomplete_details", nullptr},
            {"instructions", or_null("instructions")},
            {"max_output_tokens", or_null("max_output_tokens")},
            {"model", model_.name},
            {"output", Json::array()},
            {"parallel_tool_calls", true},
            {"previous_response_id", nullptr},
            {"reasoning", {{"effort", nullptr}, {"summary", nullptr}}},
            {"store", false},
            {"temperature", or_null("temperature")},
            {"text", {{"format", {{"type", "text"}}}}},
            {"tool_choice", request_.contains("tool_choice") ? request_["tool_choice"] : Json("auto")},
            {"tools", request_.contains("tools") ? request_["tools"] : Json::array()},
            {"top_p", or_null("top_p")},
            {"truncation", "disabled"},
            {"usage", nullptr},
            {"metadata", Json::object()}};
  }

  void tell(const char* type, Json fields) {
    if (!streams_) return;
    Json data = {{"type", type}, {"sequence_number", sequence_++}};
    data.update(fields);
    send_event(type, data);
  }

  Json place() const { return {{"item_id", items_.back().id}, {"output_index", items_.size() - 1}}; }

  void tell_at(const char* type, const Json& fields, bool in_part) {
    Json data = place();
    if (in_part) data["content_index"] = 0;
    data.update(fields);
    tell(type, std::move(data));
  }

  void open_item(Item item) {
    close_item();
    open_ = true;
    items_.push_back(std::move(item));
    Json shown = items_.back().json("in_progress");
    if (shown.contains("content")) shown["content"] = Json::array();
    tell("response.output_item.added", {{"output_index", items_.size() - 1}, {"item", shown}});
    if (items_.back().kind != Item::Kind::kCall)
      tell_at("response.content_part.added", {{"part", items_.back().part()}}, true);
  }

  void close_item() {
    if (!std::exchange(open_, false)) return;
    const Item& item = items_.back();
    if (item.kind == Item::Kind::kCall) {
      tell_at("response.function_call_arguments.done", {{"arguments", item.text}, {"name", item.name}},
              false);
    } else {
      Json done = {{"text", item.text}};
      if (item.kind == Item::Kind::kMessage) done["logprobs"] = Json::array();
      tell_at(
          item.kind == Item::Kind::kMessage ? "response.output_text.done" : "response.reasoning_text.done",
          done, true);
      tell_at("response.content_part.done", {{"part", item.part()}}, true);
    }
    tell("response.output_item.done",
         {{"output_index", items_.size() - 1}, {"item", item.json("completed")}});
  }

  void add(const OutputDelta& delta) {
    if (delta.kind == OutputDelta::Kind::kToolStart) {
      return open_item({.kind = Item::Kind::kCall,
                        .id = new_id("fc_"),
                        .text = "",
                        .call_id = new_id("call_"),
                        .name = delta.text});
    }
    Item::Kind kind = Item::Kind::kMessage;
    const char* type = "response.output_text.delta";
    const char* prefix = "msg_";
    if (delta.kind == OutputDelta::Kind::kReasoning) {
      kind = Item::Kind::kReasoning;
      type = "response.reasoning_text.delta";
      prefix = "rs_";
    } else if (delta.kind == OutputDelta::Kind::kToolArguments) {
      kind = Item::Kind::kCall;
      type = "response.function_call_arguments.delta";
      prefix = "fc_";
    }
    if (!open_ || items_.back().kind != kind)
      open_item({.kind = kind, .id = new_id(prefix), .text = "", .call_id = "", .name = ""});
    items_.back().text += delta.text;
    Json data = {{"delta", delta.text}};
    if (kind == Item::Kind::kMessage) data["logprobs"] = Json::array();
    tell_at(type, data, kind != Item::Kind::kCall);
  }

  const ServedModel& model_;
  std::unique_ptr<OutputParser> parser_;
  const std::string id_;
  const int64_t created_;
  const Json request_;
  std::vector<Item> items_;
  int sequence_ = 0;
  bool open_ = false;
  ChoiceFacts facts_;
};

}  // namespace

std::optional<ApiError> responses(Call& call) {
  const Result<Json> converted = convert(call.request);
  if (!converted.ok()) return api_error(converted.status());
  const Json& request = converted.value();
  auto generation = std::make_unique<Generation>();
  generation->sampling = call.model.sampling;
  OutputFormat format;
  bool streams = false;
  Fields fields(request);
  fields.read("stream", &streams);
  if (!fields.status().ok()) return api_error(fields.status());
  if (auto error = prepare_chat(request, call.model, generation.get(), &format)) return error;
  generation->sink = std::make_unique<ResponseSink>(call.reply, call.model, format, streams, call.request);
  submit(call, std::move(generation));
  return std::nullopt;
}

}  // namespace ganglion::server

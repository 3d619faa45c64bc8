#include "server/tool_choice.h"

#include "server/gbnf.h"
#include "server/sampling_fields.h"

namespace ganglion::server {

namespace {

Status invalid(const std::string& message) {
  return Status(Code::kInvalidArgument, message);
}

// A filter made anew from the same text for each choice.
class GrammarSource final : public FilterSource {
 public:
  GrammarSource(std::shared_ptr<GrammarVocabulary> vocabulary, GrammarKind kind, std::string text)
      : vocabulary_(std::move(vocabulary)), kind_(kind), text_(std::move(text)) {}
  Result<std::unique_ptr<TokenFilter>> make() const override { return vocabulary_->filter(kind_, text_); }

 private:
  std::shared_ptr<GrammarVocabulary> vocabulary_;
  GrammarKind kind_;
  std::string text_;
};

// Tries the grammar once, so that a bad one is the request's error.
Status set_grammar(const ServedModel& model, GrammarKind kind, const std::string& text,
                   Generation* generation) {
  if (generation->filter != nullptr)
    return invalid("only one of response_format, json_schema, grammar and a required tool can be asked for");
  const Result<std::unique_ptr<TokenFilter>> filter = model.grammars->filter(kind, text);
  if (!filter.ok()) return filter.status();
  generation->filter = std::make_shared<GrammarSource>(model.grammars, kind, text);
  return ok_status();
}

// {"name": one of the tools, "arguments": fits its parameters}
Json call_schema(const Json& tools, const std::string& name) {
  Json any = Json::array();
  for (const Json& tool : tools) {
    const Json& function = tool["function"];
    if (!name.empty() && function["name"] != name) continue;
    Json parameters = {{"type", "object"}};
    if (function.contains("parameters") && function["parameters"].is_object())
      parameters = function["parameters"];
    any.push_back({{"type", "object"},
                   {"properties", {{"name", {{"const", function["name"]}}}, {"arguments", parameters}}},
                   {"required", {"name", "arguments"}},
                   {"additionalProperties", false}});
  }
  Json schema = any.size() == 1 ? any[0] : Json{{"anyOf", any}};
  // Without this a model may write white space for ever.
  schema["x-guidance"] = {{"whitespace_flexible", false}};
  return schema;
}

}  // namespace

Status read_grammar(const Json& request, const ServedModel& model, Generation* generation) {
  Fields fields(request);
  if (const Json* schema = fields.find("json_schema")) {
    const Status status = set_grammar(model, GrammarKind::kJsonSchema, to_text(*schema), generation);
    if (!status.ok()) return status.with_context("json_schema");
  }
  std::string grammar;
  fields.read("grammar", &grammar);
  if (!fields.status().ok()) return fields.status();
  if (!grammar.empty()) {
    const Result<std::string> lark = lark_of(grammar);
    if (!lark.ok()) return lark.status().with_context("grammar");
    const Status status = set_grammar(model, GrammarKind::kLark, lark.value(), generation);
    if (!status.ok()) return status.with_context("grammar");
  }
  const Json* format = fields.find("response_format");
  if (format == nullptr) return ok_status();
  if (!format->is_object() || !format->contains("type") || !(*format)["type"].is_string())
    return invalid("response_format: must be an object with a type");
  const auto type = (*format)["type"].get<std::string>();
  if (type == "text") return ok_status();
  Json schema = {{"type", "object"}};
  if (type == "json_schema") {
    const Json* named = Fields(*format).find("json_schema");
    if (named != nullptr && named->is_object() && named->contains("schema")) {
      schema = (*named)["schema"];
    } else if (format->contains("schema")) {
      schema = (*format)["schema"];
    } else {
      return invalid("response_format: json_schema.schema is missing");
    }
  } else if (type == "json_object") {
    if (format->contains("schema")) schema = (*format)["schema"];
  } else {
    return invalid("response_format: type '" + type + "' is not text, json_object or json_schema");
  }
  // As JSON allows, but not for ever.
  if (schema.is_object() && !schema.contains("x-guidance"))
    schema["x-guidance"] = {{"whitespace_pattern", "[ \\n\\r\\t]{1,20}"}};
  return set_grammar(model, GrammarKind::kJsonSchema, to_text(schema), generation)
      .with_context("response_format");
}

Status read_tool_use(const Json& request, ChatInput* input, ToolUse* use) {
  const Json* choice = Fields(request).find("tool_choice");
  if (choice == nullptr) return ok_status();
  if (choice->is_string()) {
    const auto word = choice->get<std::string>();
    if (word == "none") {
      use->choice = ToolChoice::kNone;
      input->tools = nullptr;
    } else if (word == "required") {
      use->choice = ToolChoice::kRequired;
    } else if (word != "auto") {
      return invalid("tool_choice: '" + word + "' is not auto, none or required");
    }
  } else if (choice->is_object() && choice->contains("function") && (*choice)["function"].is_object() &&
             (*choice)["function"].contains("name") && (*choice)["function"]["name"].is_string()) {
    use->choice = ToolChoice::kRequired;
    use->name = (*choice)["function"]["name"].get<std::string>();
  } else {
    return invalid("tool_choice: must be auto, none, required or {\"function\": {\"name\": ...}}");
  }
  if (use->choice != ToolChoice::kRequired) return ok_status();
  if (input->tools.is_null()) return invalid("tool_choice: a tool is required but there are no tools");
  for (const Json& tool : input->tools) {
    if (use->name.empty() || tool["function"]["name"] == use->name) return ok_status();
  }
  return invalid("tool_choice: there is no tool '" + use->name + "'");
}

Status require_tool(const ServedModel& model, const ChatInput& input, const ToolUse& use,
                    Generation* generation) {
  if (use.choice != ToolChoice::kRequired) return ok_status();
  // The call is written as plain JSON, which every format's parser takes.
  return set_grammar(model, GrammarKind::kJsonSchema, to_text(call_schema(input.tools, use.name)), generation)
      .with_context("tools");
}

Status choose_format(const Json& request, const ServedModel& model, const ChatInput& input,
                     const ChatPrompt& prompt, OutputFormat* format, Generation* generation) {
  Fields fields(request);
  std::string reasoning = "auto";
  fields.read("reasoning_format", &reasoning);
  if (!fields.status().ok()) return fields.status();
  if (reasoning != "auto" && reasoning != "none" && reasoning != "deepseek")
    return invalid("reasoning_format: '" + reasoning + "' is not auto, deepseek or none");
  const ToolFormat family = tool_format_of(model.chat_template);
  const bool thinks = model.chat_template.find("<think>") != std::string::npos ||
                      model.chat_template.find("</think>") != std::string::npos;
  // With a grammar the whole answer is what it allows.
  const bool constrained = generation->filter != nullptr;
  format->reasoning = reasoning != "none" && thinks && !constrained;
  format->begins_in_reasoning = format->reasoning && prompt.begins_in_reasoning;
  if (!input.tools.is_null()) format->tools = constrained ? ToolFormat::kGeneric : family;
  if (family == ToolFormat::kHarmony && !constrained) format->tools = family;
  // Their marks are control tokens in many files.
  generation->show_control_tokens =
      format->tools != ToolFormat::kNone && format->tools != ToolFormat::kGeneric;
  return ok_status();
}

std::optional<ApiError> prepare_chat(const Json& request, const ServedModel& model, Generation* generation,
                                     OutputFormat* format) {
  ChatInput input;
  ToolUse tools;
  Status status = read_sampling(request, model.text, generation);
  if (status.ok()) status = read_chat(request, &input);
  if (status.ok()) status = read_tool_use(request, &input, &tools);
  if (status.ok()) status = read_grammar(request, model, generation);
  if (status.ok()) status = require_tool(model, input, tools, generation);
  if (!status.ok()) return api_error(status);
  Result<ChatPrompt> prompt = make_chat_prompt(model, input);
  if (!prompt.ok()) return api_error(prompt.status());
  status = choose_format(request, model, input, prompt.value(), format, generation);
  if (!status.ok()) return api_error(status);
  generation->prompts.push_back(std::move(prompt.value().tokens));
  return check_prompts(*generation, model);
}

}  // namespace ganglion::server

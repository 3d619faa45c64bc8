// POST /v1/chat/completions.
#include <utility>

#include "server/endpoint.h"
#include "server/sampling_fields.h"
#include "server/tool_choice.h"

namespace ganglion::server {

namespace {

struct ChatOptions {
  bool streams = false;
  bool include_usage = false;
  bool return_progress = false;
  bool timings_per_token = false;
  bool logprobs = false;
  bool reports_top = false;
  bool one_tool = false;  ///< parallel_tool_calls is false.
  OutputFormat format;
};

struct ToolCall {
  std::string id;
  std::string name;
  std::string arguments;
};

struct Choice {
  std::unique_ptr<OutputParser> parser;
  std::string content;
  std::string reasoning;
  std::vector<ToolCall> tools;
  std::vector<TokenProbs> probs;
  ChoiceFacts facts;
};

class ChatSink final : public ReplySink {
 public:
  ChatSink(std::shared_ptr<Reply> reply, const ServedModel& model, const ChatOptions& options, size_t choices)
      : ReplySink(std::move(reply), options.streams),
        model_(model),
        options_(options),
        id_(new_id("chatcmpl-")),
        created_(unix_seconds()),
        choices_(choices) {
    for (Choice& choice : choices_) choice.parser = OutputParser::create(options.format);
  }

  void started() override {
    if (!streams_) return;
    // An event that clients take for progress: comments do not reset all of their clocks.
    begin_stream("data: " + to_text(chunk(0, Json::object())) + "\n\n");
    for (size_t i = 0; i < choices_.size(); ++i)
      send_data(chunk(i, {{"role", "assistant"}, {"content", nullptr}}));
  }

  void progress(size_t choice, const PromptProgress& progress) override {
    if (!streams_ || !options_.return_progress) return;
    Json data = chunk(choice, Json::object());
    data["prompt_progress"] = {{"total", progress.total},
                               {"cache", progress.cached},
                               {"processed", progress.done},
                               {"time_ms", progress.ms}};
    send_data(data);
  }

  void text(size_t index, std::string_view text, std::span<const TokenProbs> probs,
            const ChoiceFacts& facts) override {
    Choice& choice = choices_[index];
    choice.probs.insert(choice.probs.end(), probs.begin(), probs.end());
    choice.facts = facts;
    std::vector<OutputDelta> deltas;
    choice.parser->push(text, &deltas);
    add(index, deltas);
  }

  void finished(size_t index, const ChoiceFacts& facts) override {
    Choice& choice = choices_[index];
    choice.facts = facts;
    std::vector<OutputDelta> deltas;
    choice.parser->finish(&deltas);
    add(index, deltas);
    usage_.add(facts, index == 0);
    if (!streams_) return;
    Json data = chunk(index, Json::object());
    data["choices"][0]["finish_reason"] = finish_reason(choice);
    if (options_.logprobs && !choice.probs.empty()) data["choices"][0]["logprobs"] = take_logprobs(choice);
    data["timings"] = timings_json(facts);
    send_data(data);
  }

  void completed() override {
    if (!streams_) return reply_->respond_json(200, whole());
    if (options_.include_usage) {
      Json data = chunk(0, Json::object());
      data["choices"] = Json::array();
      data["usage"] = openai_usage(usage_);
      data["timings"] = timings_json(choices_[0].facts);
      send_data(data);
    }
    reply_->send("data: [DONE]\n\n");
    reply_->end_stream();
  }

 private:
  Json chunk(size_t index, Json delta) const {
    Json data = {{"id", id_},
                 {"object", "chat.completion.chunk"},
                 {"created", created_},
                 {"model", model_.name},
                 {"system_fingerprint", "ganglion"},
                 {"choices", Json::array({{{"index", index},
                                           {"delta", std::move(delta)},
                                           {"logprobs", nullptr},
                                           {"finish_reason", nullptr}}})}};
    if (options_.include_usage) data["usage"] = nullptr;
    return data;
  }

  Json take_logprobs(Choice& choice) {
    std::vector<TokenProbs> probs = std::exchange(choice.probs, {});
    if (!options_.reports_top) {
      for (TokenProbs& token : probs) token.top.clear();
    }
    return chat_logprobs(model_.text, probs);
  }

  static const char* finish_reason(const Choice& choice) {
    if (choice.facts.finish == Finish::kLength) return "length";
    return choice.tools.empty() ? "stop" : "tool_calls";
  }

  void add(size_t index, const std::vector<OutputDelta>& deltas) {
    for (const OutputDelta& delta : deltas) {
      if (options_.one_tool && delta.tool > 0) continue;
      Json json = add_one(choices_[index], delta);
      if (!streams_) continue;
      Json data = chunk(index, std::move(json));
      if (options_.logprobs && !choices_[index].probs.empty())
        data["choices"][0]["logprobs"] = take_logprobs(choices_[index]);
      if (options_.timings_per_token) data["timings"] = timings_json(choices_[index].facts);
      send_data(data);
    }
  }

  // Adds to the choice; the delta for a stream.
  static Json add_one(Choice& choice, const OutputDelta& delta) {
    switch (delta.kind) {
      case OutputDelta::Kind::kContent:
        choice.content += delta.text;
        return {{"content", delta.text}};
      case OutputDelta::Kind::kReasoning:
        choice.reasoning += delta.text;
        return {{"reasoning_content", delta.text}};
      case OutputDelta::Kind::kToolStart:
        choice.tools.push_back({.id = new_id("call_"), .name = delta.text, .arguments = ""});
        return {{"tool_calls", Json::array({{{"index", delta.tool},
                                             {"id", choice.tools.back().id},
                                             {"type", "function"},
                                             {"function", {{"name", delta.text}, {"arguments", ""}}}}})}};
      case OutputDelta::Kind::kToolArguments:
        if (delta.tool < choice.tools.size()) choice.tools[delta.tool].arguments += delta.text;
        return {{"tool_calls",
                 Json::array({{{"index", delta.tool}, {"function", {{"arguments", delta.text}}}}})}};
    }
    return Json::object();
  }

  Json whole() {
    Json list = Json::array();
    for (size_t i = 0; i < choices_.size(); ++i) {
      Choice& choice = choices_[i];
      Json message = {{"role", "assistant"}};
      if (choice.content.empty() && !choice.tools.empty()) {
        message["content"] = nullptr;
      } else {
        message["content"] = choice.content;
      }
      if (!choice.reasoning.empty()) message["reasoning_content"] = choice.reasoning;
      for (const ToolCall& tool : choice.tools) {
        message["tool_calls"].push_back({{"id", tool.id},
                                         {"type", "function"},
                                         {"function", {{"name", tool.name}, {"arguments", tool.arguments}}}});
      }
      Json object = {{"index", i}, {"message", message}, {"logprobs", nullptr}};
      if (options_.logprobs) object["logprobs"] = take_logprobs(choice);
      object["finish_reason"] = finish_reason(choice);
      list.push_back(object);
    }
    return {{"id", id_},
            {"object", "chat.completion"},
            {"created", created_},
            {"model", model_.name},
            {"system_fingerprint", "ganglion"},
            {"choices", list},
            {"usage", openai_usage(usage_)},
            {"timings", timings_json(choices_[0].facts)}};
  }

  const ServedModel& model_;
  const ChatOptions options_;
  const std::string id_;
  const int64_t created_;
  std::vector<Choice> choices_;
  Usage usage_;
};

Status read_options(const Json& request, ChatOptions* options, Generation* generation) {
  Fields fields(request);
  fields.read("stream", &options->streams);
  fields.read("return_progress", &options->return_progress);
  fields.read("timings_per_token", &options->timings_per_token);
  fields.read("logprobs", &options->logprobs);
  bool parallel = true;
  fields.read("parallel_tool_calls", &parallel);
  options->one_tool = !parallel;
  size_t top = 0;
  fields.read_count("top_logprobs", 20, &top);
  options->reports_top = top > 0;
  if (top > 0 && !options->logprobs) fields.fail("top_logprobs", "needs logprobs: true");
  generation->tells_probs = options->logprobs;
  generation->sampling.n_probs = options->logprobs ? std::max<int32_t>(1, static_cast<int32_t>(top)) : 0;
  if (const Json* stream_options = fields.find("stream_options")) {
    if (!stream_options->is_object()) {
      fields.fail("stream_options", "must be an object");
    } else {
      Fields inner(*stream_options);
      inner.read("include_usage", &options->include_usage);
      if (!inner.status().ok()) return inner.status().with_context("stream_options");
    }
  }
  if (!fields.status().ok()) return fields.status();
  return refuse_fields(request, {"functions", "function_call", "audio", "web_search_options", "store"});
}

}  // namespace

std::optional<ApiError> chat_completions(Call& call) {
  auto generation = std::make_unique<Generation>();
  generation->sampling = call.model.sampling;
  ChatOptions options;
  const Status status = read_options(call.request, &options, generation.get());
  if (!status.ok()) return api_error(status);
  if (auto error = prepare_chat(call.request, call.model, generation.get(), &options.format)) return error;
  generation->sink = std::make_unique<ChatSink>(call.reply, call.model, options, generation->choices);
  submit(call, std::move(generation));
  return std::nullopt;
}

}  // namespace ganglion::server

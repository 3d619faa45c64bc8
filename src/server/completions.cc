// POST /v1/completions and llama-server's own /completion.
#include <utility>

#include "server/endpoint.h"
#include "server/prompts.h"
#include "server/sampling_fields.h"

namespace ganglion::server {

namespace {

struct CompletionOptions {
  bool streams = false;
  bool include_usage = false;
  bool native = false;  ///< /completion.
  bool return_tokens = false;
  size_t choices_per_prompt = 1;
  std::vector<std::string> echoes;  ///< Per prompt, if its text is to stand before the answer.
};

struct Choice {
  std::string text;
  std::vector<TokenProbs> probs;
  ChoiceFacts facts;
};

// OpenAI's older form: parallel lists.
Json legacy_logprobs(const TextModel& text, std::span<const TokenProbs> probs, size_t* offset) {
  Json tokens = Json::array();
  Json values = Json::array();
  Json tops = Json::array();
  Json offsets = Json::array();
  for (const TokenProbs& token : probs) {
    const std::string shown = token_text(text, token.chosen.token);
    tokens.push_back(shown);
    values.push_back(token.chosen.log_prob);
    Json top = Json::object();
    for (const TokenLogProb& one : token.top) top[to_text(token_text(text, one.token))] = one.log_prob;
    Json clean = Json::object();
    for (const auto& [key, value] : top.items()) clean[Json::parse(key).get<std::string>()] = value;
    tops.push_back(clean);
    offsets.push_back(*offset);
    *offset += shown.size();
  }
  return {{"tokens", tokens}, {"token_logprobs", values}, {"top_logprobs", tops}, {"text_offset", offsets}};
}

class CompletionSink final : public ReplySink {
 public:
  CompletionSink(std::shared_ptr<Reply> reply, const ServedModel& model, CompletionOptions options,
                 const Generation& generation)
      : ReplySink(std::move(reply), options.streams),
        model_(model),
        options_(std::move(options)),
        id_(new_id("cmpl-")),
        created_(unix_seconds()),
        tells_probs_(generation.tells_probs),
        choices_(generation.prompts.size() * generation.choices) {}

  void started() override {
    if (!streams_) return;
    begin_stream("data: " + to_text(options_.native ? native(0, "", false) : chunk(0, "")) + "\n\n");
  }

  void text(size_t index, std::string_view text, std::span<const TokenProbs> probs,
            const ChoiceFacts& facts) override {
    Choice& choice = choices_[index];
    choice.facts = facts;
    choice.probs.insert(choice.probs.end(), probs.begin(), probs.end());
    if (!streams_) {
      if (choice.text.empty()) choice.text = echo(index);
      choice.text += text;
      return;
    }
    const std::string shown =
        (std::exchange(choice.text, "x").empty() ? echo(index) : "") + std::string(text);
    Json data = options_.native ? native(index, shown, false) : chunk(index, shown);
    if (!options_.native && tells_probs_) data["choices"][0]["logprobs"] = take_logprobs(choice);
    send_data(data);
  }

  void finished(size_t index, const ChoiceFacts& facts) override {
    Choice& choice = choices_[index];
    choice.facts = facts;
    usage_.add(facts, index % options_.choices_per_prompt == 0);
    if (!streams_) {
      if (choice.text.empty()) choice.text = echo(index);
      return;
    }
    if (options_.native) return send_data(native(index, "", true));
    Json data = chunk(index, "");
    data["choices"][0]["finish_reason"] = reason(facts);
    data["timings"] = timings_json(facts);
    send_data(data);
  }

  void completed() override {
    if (!streams_) return reply_->respond_json(200, options_.native ? all_native() : whole());
    if (!options_.native) {
      if (options_.include_usage) {
        Json data = chunk(0, "");
        data["choices"] = Json::array();
        data["usage"] = openai_usage(usage_);
        send_data(data);
      }
      reply_->send("data: [DONE]\n\n");
    }
    reply_->end_stream();
  }

 private:
  static const char* reason(const ChoiceFacts& facts) {
    return facts.finish == Finish::kLength ? "length" : "stop";
  }

  std::string echo(size_t index) const {
    return options_.echoes.empty() ? "" : options_.echoes[index / options_.choices_per_prompt];
  }

  Json take_logprobs(Choice& choice) {
    const std::vector<TokenProbs> probs = std::exchange(choice.probs, {});
    return legacy_logprobs(model_.text, probs, &offset_);
  }

  Json chunk(size_t index, const std::string& text) const {
    Json data = {
        {"id", id_},
        {"object", "text_completion"},
        {"created", created_},
        {"model", model_.name},
        {"choices",
         Json::array(
             {{{"text", text}, {"index", index}, {"logprobs", nullptr}, {"finish_reason", nullptr}}})}};
    if (options_.include_usage) data["usage"] = nullptr;
    return data;
  }

  Json whole() {
    Json list = Json::array();
    for (size_t i = 0; i < choices_.size(); ++i) {
      offset_ = 0;
      Json object = {{"text", choices_[i].text}, {"index", i}, {"logprobs", nullptr}};
      if (tells_probs_) object["logprobs"] = take_logprobs(choices_[i]);
      object["finish_reason"] = reason(choices_[i].facts);
      list.push_back(object);
    }
    return {{"id", id_},
            {"object", "text_completion"},
            {"created", created_},
            {"model", model_.name},
            {"choices", list},
            {"usage", openai_usage(usage_)},
            {"timings", timings_json(choices_[0].facts)}};
  }

  Json native(size_t index, const std::string& text, bool stop) {
    Choice& choice = choices_[index];
    const ChoiceFacts& facts = choice.facts;
    Json data = {{"index", index},
                 {"content", text},
                 {"stop", stop},
                 {"tokens_predicted", facts.tokens},
                 {"tokens_evaluated", facts.prompt_tokens}};
    if (tells_probs_ && !choice.probs.empty())
      data["completion_probabilities"] =
          chat_logprobs(model_.text, std::exchange(choice.probs, {}))["content"];
    if (!stop) return data;
    const char* type = facts.finish == Finish::kLength ? "limit" : facts.stop_text.empty() ? "eos" : "word";
    data["model"] = model_.name;
    data["stop_type"] = type;
    data["stopping_word"] = facts.stop_text;
    data["truncated"] = false;
    data["tokens_cached"] = facts.cached_tokens;
    data["seed"] = facts.seed;
    data["timings"] = timings_json(facts);
    return data;
  }

  Json all_native() {
    Json list = Json::array();
    for (size_t i = 0; i < choices_.size(); ++i) list.push_back(native(i, choices_[i].text, true));
    return list.size() == 1 ? list[0] : list;
  }

  const ServedModel& model_;
  const CompletionOptions options_;
  const std::string id_;
  const int64_t created_;
  const bool tells_probs_;
  std::vector<Choice> choices_;
  Usage usage_;
  size_t offset_ = 0;
};

// How many probabilities each token gets: "logprobs" is a number here, "n_probs" llama-server's name.
void read_probs(Fields& fields, Generation* generation) {
  size_t count = 0;
  const Json* field = fields.find("logprobs");
  if (field != nullptr && field->is_boolean()) {
    generation->tells_probs = field->get<bool>();
  } else if (field != nullptr) {
    fields.read_count("logprobs", 100, &count);
    generation->tells_probs = true;
  }
  fields.read_count("n_probs", 100, &count);
  if (count > 0) generation->tells_probs = true;
  generation->sampling.n_probs =
      generation->tells_probs ? std::max<int32_t>(1, static_cast<int32_t>(count)) : 0;
}

std::optional<ApiError> complete(Call& call, bool native) {
  auto generation = std::make_unique<Generation>();
  generation->sampling = call.model.sampling;
  CompletionOptions options;
  options.native = native;
  Fields fields(call.request);
  fields.read("stream", &options.streams);
  bool echo = false;
  fields.read("echo", &echo);
  read_probs(fields, generation.get());
  if (const Json* stream_options = fields.find("stream_options")) {
    if (stream_options->is_object()) Fields(*stream_options).read("include_usage", &options.include_usage);
  }
  int64_t best_of = 1;
  fields.read("best_of", &best_of);
  Status status = fields.status();
  if (status.ok()) status = read_sampling(call.request, call.model.text, generation.get());
  if (status.ok() && best_of > 1 && static_cast<uint64_t>(best_of) != generation->choices)
    status = Status(Code::kInvalidArgument, "best_of: is not supported, only n");
  if (status.ok()) status = read_grammar(call.request, call.model, generation.get());
  if (status.ok()) status = refuse_fields(call.request, {"suffix", "response_fields", "n_keep", "lora"});
  if (status.ok()) status = read_prompts(call.request, call.model, generation.get());
  if (!status.ok()) return api_error(status);
  if (const auto error = check_prompts(*generation, call.model)) return error;
  options.choices_per_prompt = generation->choices;
  for (size_t i = 0; echo && i < generation->prompts.size(); ++i)
    options.echoes.push_back(call.model.text.decode(generation->prompts[i], false));
  generation->sink =
      std::make_unique<CompletionSink>(call.reply, call.model, std::move(options), *generation);
  submit(call, std::move(generation));
  return std::nullopt;
}

}  // namespace

std::optional<ApiError> completions(Call& call) {
  return complete(call, false);
}

std::optional<ApiError> native_completion(Call& call) {
  return complete(call, true);
}

}  // namespace ganglion::server

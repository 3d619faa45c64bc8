#include "server/endpoint.h"

#include <chrono>
#include <random>

namespace ganglion::server {

void ReplySink::begin_stream(std::string keep_alive) {
  streaming_ = true;
  reply_->begin_stream(std::move(keep_alive));
}

void ReplySink::send_event(const char* name, const Json& data) {
  reply_->send(std::string("event: ") + name + "\ndata: " + to_text(data) + "\n\n");
}

std::string ReplySink::error_event(const ApiError& error) const {
  return "data: " + to_text(error_body(error)) + "\n\n";
}

void ReplySink::failed(const ApiError& error) {
  if (!streaming_) return reply_->respond_json(error.http, error_body(error));
  reply_->send(error_event(error));
  reply_->end_stream();
}

Json timings_json(const ChoiceFacts& facts) {
  const size_t evaluated = facts.prompt_tokens - facts.cached_tokens;
  const auto rate = [](size_t count, double ms) {
    return ms > 0 ? 1e3 * static_cast<double>(count) / ms : 0;
  };
  const auto each = [](size_t count, double ms) { return count > 0 ? ms / static_cast<double>(count) : 0; };
  return {{"cache_n", facts.cached_tokens},
          {"prompt_n", evaluated},
          {"prompt_ms", facts.prompt_ms},
          {"prompt_per_token_ms", each(evaluated, facts.prompt_ms)},
          {"prompt_per_second", rate(evaluated, facts.prompt_ms)},
          {"predicted_n", facts.tokens},
          {"predicted_ms", facts.answer_ms},
          {"predicted_per_token_ms", each(facts.tokens, facts.answer_ms)},
          {"predicted_per_second", rate(facts.tokens, facts.answer_ms)},
          {"io_bytes", static_cast<uint64_t>(facts.io_bytes)},
          {"io_wait_ms", facts.io_wait_ms},
          {"cache_hit_rate", facts.cache_hit_rate}};
}

void Usage::add(const ChoiceFacts& facts, bool first_choice) {
  answer_tokens += facts.tokens;
  if (!first_choice) return;
  prompt_tokens += facts.prompt_tokens;
  cached_tokens += facts.cached_tokens;
}

Json openai_usage(const Usage& usage) {
  return {{"prompt_tokens", usage.prompt_tokens},
          {"completion_tokens", usage.answer_tokens},
          {"total_tokens", usage.prompt_tokens + usage.answer_tokens},
          {"prompt_tokens_details", {{"cached_tokens", usage.cached_tokens}}}};
}

std::string new_id(const char* prefix) {
  static constexpr char kLetters[] = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
  thread_local std::mt19937_64 random{std::random_device{}()};
  std::string id = prefix;
  for (int i = 0; i < 24; ++i) id += kLetters[random() % (sizeof kLetters - 1)];
  return id;
}

int64_t unix_seconds() {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

std::string token_text(const TextModel& text, int32_t token) {
  const std::string_view bytes = text.bytes(token);
  return bytes.empty() ? text.token_name(token) : std::string(bytes);
}

Json chat_logprobs(const TextModel& text, std::span<const TokenProbs> probs) {
  const auto entry = [&](const TokenLogProb& one) {
    const std::string bytes = token_text(text, one.token);
    Json list = Json::array();
    for (const char byte : bytes) list.push_back(static_cast<uint8_t>(byte));
    return Json{{"id", one.token}, {"token", bytes}, {"bytes", list}, {"logprob", one.log_prob}};
  };
  Json content = Json::array();
  for (const TokenProbs& token : probs) {
    Json object = entry(token.chosen);
    object["top_logprobs"] = Json::array();
    for (const TokenLogProb& top : token.top) object["top_logprobs"].push_back(entry(top));
    content.push_back(object);
  }
  return {{"content", content}};
}

ApiError no_such_slot(int64_t slot, size_t slots) {
  return bad_request("there is no slot " + std::to_string(slot) + " - the last one is " +
                     std::to_string(slots - 1) + ", start the server with a larger --parallel");
}

std::optional<ApiError> check_prompts(const Generation& generation, const ServedModel& model) {
  if (generation.slot >= static_cast<int64_t>(model.slots)) return no_such_slot(generation.slot, model.slots);
  for (const std::vector<int32_t>& prompt : generation.prompts) {
    if (prompt.empty()) return bad_request("the prompt is empty");
    if (prompt.size() >= model.context) return context_error(prompt.size(), model.context);
  }
  return std::nullopt;
}

void submit(Call& call, std::unique_ptr<Generation> generation) {
  (void)call.scheduler.submit(std::move(generation));
}

}  // namespace ganglion::server

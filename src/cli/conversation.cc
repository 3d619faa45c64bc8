#include "cli/conversation.h"

#include <algorithm>
#include <chrono>

#include "cli/progress.h"
#include "ganglion/chat.h"

namespace ganglion::cli {

namespace {

double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

Result<AnswerFacts> Conversation::complete(const std::string& prompt, int64_t most) {
  Result<std::vector<int32_t>> tokens = engine_.text().encode(prompt, true, true);
  if (!tokens.ok()) return tokens.status();
  if (tokens.value().empty() && engine_.text().bos() >= 0) tokens.value().push_back(engine_.text().bos());
  std::string text;
  return generate(tokens.take(), most, &text);
}

void Conversation::add_message(const std::string& role, const std::string& content) {
  messages_.push_back({{"role", role}, {"content", content}});
}

void Conversation::clear() {
  messages_.clear();
  session_.reset();
  evaluated_.clear();
}

Result<AnswerFacts> Conversation::answer(int64_t most) {
  const TextModel& model = engine_.text();
  const nlohmann::ordered_json request = {
      {"messages", messages_},
      {"tools", nullptr},
      {"kwargs", {{"add_generation_prompt", true}}},
      {"special_tokens",
       {{"bos_token", model.token_name(model.bos())}, {"eos_token", model.token_name(model.eos())}}}};
  const Result<std::string> rendered =
      render_chat(template_, request.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
  if (!rendered.ok()) return rendered.status();
  // The template writes the special tokens itself.
  Result<std::vector<int32_t>> tokens = model.encode(rendered.value(), false, true);
  if (!tokens.ok()) return tokens.status();
  std::string text;
  Result<AnswerFacts> facts = generate(tokens.take(), most, &text);
  if (facts.ok()) add_message("assistant", text);
  return facts;
}

Status Conversation::evaluate_prompt(Generator& generator, const std::vector<int32_t>& prompt,
                                     AnswerFacts* facts) {
  size_t common = 0;
  while (common < evaluated_.size() && common + 1 < prompt.size() && evaluated_[common] == prompt[common])
    ++common;
  if (!session_.try_rewind(common)) {
    session_.reset();
    common = 0;
  }
  facts->prompt_tokens = prompt.size() - common;
  const double start = now_s();
  const std::span<const int32_t> all(prompt);
  struct Shown {
    Progress progress{"reading the prompt"};
    PassLog* log;
    uint64_t done = 0;
  } shown{.log = log_};
  const Status status = generator.prompt(
      all.first(common), all.subspan(common), &interrupted(), engine_.plan().chunk,
      [](void* context, uint64_t done, uint64_t total) {
        auto* to = static_cast<Shown*>(context);
        to->progress.update(done, total);
        if (to->log != nullptr) to->log->add("prompt", done - std::exchange(to->done, done));
      },
      &shown);
  facts->prompt_s = now_s() - start;
  facts->interrupted = status.code() == Code::kCancelled;
  return facts->interrupted ? ok_status() : status;
}

Status Conversation::generate_answer(Generator& generator, int64_t most, std::string* text,
                                     AnswerFacts* facts) {
  const std::unique_ptr<TextStream> stream = engine_.text().new_stream(false);
  const auto show = [&](const std::string& piece) {
    *text += piece;
    return write_out(piece);
  };
  bool ended = false;
  while (!ended && !facts->interrupted && (most < 0 || static_cast<int64_t>(facts->answer_tokens) < most)) {
    facts->context_full = facts->answer_tokens > 0 && session_.position() == session_.context();
    if (facts->context_full) break;
    follow_budget_signals(engine_);
    const size_t left = most < 0 ? SIZE_MAX : static_cast<size_t>(most) - facts->answer_tokens;
    const Result<std::span<const int32_t>> tokens = generator.step(left, &interrupted());
    facts->interrupted = interrupted();
    if (tokens.status().code() == Code::kCancelled) break;
    if (!tokens.ok()) return tokens.status();
    if (log_ != nullptr) log_->add("answer", tokens.value().size());
    for (const int32_t token : tokens.value()) {
      ended = engine_.text().is_end_of_generation(token);
      if (ended) break;
      ++facts->answer_tokens;
      const Status status = show(stream->push(token));
      if (!status.ok()) return status;
    }
  }
  return show(stream->finish());
}

Result<AnswerFacts> Conversation::generate(std::vector<int32_t> prompt, int64_t most, std::string* text) {
  AnswerFacts facts;
  Generator generator(session_, sampler_, generation_);
  Status status = evaluate_prompt(generator, prompt, &facts);
  const EngineStats before = engine_.stats();
  const double start = now_s();
  if (status.ok()) status = generate_answer(generator, most, text, &facts);
  evaluated_.assign(generator.history().begin(), generator.history().end());
  if (status.ok()) status = write_out("\n");
  if (!status.ok()) return status;
  tell_of_lost_device(engine_);
  const EngineStats after = engine_.stats();
  facts.answer_s = now_s() - start;
  facts.answer_io_bytes = after.device_bytes + after.cached_bytes - before.device_bytes - before.cached_bytes;
  facts.answer_wait_ns = after.io_wait_ns - before.io_wait_ns;
  facts.generation = generator.stats();
  return facts;
}

std::string facts_text(const AnswerFacts& facts, const PlanSummary& plan) {
  const auto rate = [](size_t count, double seconds) {
    return seconds > 0 ? static_cast<double>(count) / seconds : 0;
  };
  const double tokens = std::max<double>(1, static_cast<double>(facts.answer_tokens));
  const MemoryPeak peak = memory_peak();
  char line[320];
  char drafts[80] = "";
  if (facts.generation.drafted > 0) {
    std::snprintf(drafts, sizeof drafts, " | drafts %zu of %zu right", facts.generation.accepted,
                  facts.generation.drafted);
  }
  std::snprintf(line, sizeof line,
                "[prompt %zu tokens, %.1f/s | answer %zu tokens, %.1f/s | read %s per token, waited %.1f ms "
                "per token%s | peak memory %s of %s]\n",
                facts.prompt_tokens, rate(facts.prompt_tokens, facts.prompt_s), facts.answer_tokens,
                rate(facts.answer_tokens, facts.answer_s),
                bytes_text(static_cast<double>(facts.answer_io_bytes) / tokens).c_str(),
                static_cast<double>(facts.answer_wait_ns) / 1e6 / tokens, drafts,
                bytes_text(static_cast<double>(peak.resident_bytes)).c_str(),
                bytes_text(static_cast<double>(plan.budget_bytes)).c_str());
  return line;
}

}  // namespace ganglion::cli

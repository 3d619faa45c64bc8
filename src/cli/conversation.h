// Generates answers: plain continuations, or turns of a chat that reuse what is already evaluated.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/command.h"
#include "cli/pass_log.h"
#include "ganglion/generation.h"
#include "ganglion/sampling.h"

namespace ganglion::cli {

/// What an answer took.
struct AnswerFacts {
  size_t prompt_tokens = 0;  ///< Evaluated, without those that were there.
  double prompt_s = 0;
  size_t answer_tokens = 0;
  double answer_s = 0;
  uint64_t answer_io_bytes = 0;
  int64_t answer_wait_ns = 0;
  GenerationStats generation;
  bool context_full = false;
  bool interrupted = false;
};

class Conversation {
 public:
  Conversation(Engine& engine, Session& session, Sampler& sampler, const GenerationOptions& generation)
      : engine_(engine), session_(session), sampler_(sampler), generation_(generation) {}

  /// Continues `prompt` as it is. Text goes to stdout as it comes. `most`: tokens, negative for no limit.
  Result<AnswerFacts> complete(const std::string& prompt, int64_t most);

  /// Told of every pass; must outlive the conversation.
  void set_log(PassLog* log) { log_ = log; }
  void set_template(std::string source) { template_ = std::move(source); }
  void add_message(const std::string& role, const std::string& content);
  /// Renders the messages, answers, and adds the answer as a message.
  Result<AnswerFacts> answer(int64_t most);
  void clear();

 private:
  Result<AnswerFacts> generate(std::vector<int32_t> prompt, int64_t most, std::string* text);
  Status evaluate_prompt(Generator& generator, const std::vector<int32_t>& prompt, AnswerFacts* facts);
  Status generate_answer(Generator& generator, int64_t most, std::string* text, AnswerFacts* facts);

  Engine& engine_;
  Session& session_;
  Sampler& sampler_;
  GenerationOptions generation_;
  PassLog* log_ = nullptr;
  std::string template_;
  nlohmann::ordered_json messages_ = nlohmann::ordered_json::array();
  std::vector<int32_t> evaluated_;  ///< What the session holds.
};

/// "[prompt 31 tokens, 210.3/s | answer ... | peak memory ...]"
std::string facts_text(const AnswerFacts& facts, const PlanSummary& plan);

}  // namespace ganglion::cli

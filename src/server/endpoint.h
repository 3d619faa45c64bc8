// What the endpoints share: the served model, a call, and the base of those that answer with generated text.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "ganglion/engine.h"
#include "ganglion/grammar.h"
#include "server/generation_task.h"
#include "server/http.h"
#include "server/scheduler.h"

namespace ganglion::server {

/// Immutable while requests are served.
struct ServedModel {
  const TextModel& text;
  std::string name;  ///< As clients call it.
  std::string path;
  std::string chat_template;  ///< Empty: there is none.
  SamplingOptions sampling;   ///< What a request does not say.
  size_t context = 0;
  size_t slots = 1;
  std::string slot_save_path;  ///< Folder of saved slots; empty: slots are not saved.
  uint64_t slot_save_bytes = 0;
  int64_t created_s = 0;  ///< Unix time of the start.
  Json facts;             ///< "meta" of /v1/models.
  std::shared_ptr<GrammarVocabulary> grammars;
};

struct Call {
  const ServedModel& model;
  Scheduler& scheduler;
  const HttpHead& head;
  const Json& request;
  std::shared_ptr<Reply> reply;
};

/// Runs on the thread that reads requests. What it returns is the answer, unless it has answered itself.
using Endpoint = std::optional<ApiError> (*)(Call& call);

std::optional<ApiError> chat_completions(Call& call);
std::optional<ApiError> completions(Call& call);
std::optional<ApiError> native_completion(Call& call);
std::optional<ApiError> embeddings(Call& call);
std::optional<ApiError> tokenize(Call& call);
std::optional<ApiError> detokenize(Call& call);
std::optional<ApiError> apply_template(Call& call);
std::optional<ApiError> messages(Call& call);
std::optional<ApiError> count_message_tokens(Call& call);
std::optional<ApiError> responses(Call& call);
/// POST /slots/N?action=save, restore or erase.
std::optional<ApiError> slot_action(Call& call);

/// Answers through a Reply, whole or as events.
class ReplySink : public GenerationSink {
 public:
  ReplySink(std::shared_ptr<Reply> reply, bool streams) : reply_(std::move(reply)), streams_(streams) {}

  void failed(const ApiError& error) override;
  std::atomic<bool>& cancelled() override { return reply_->cancelled(); }

 protected:
  /// The error as an event of a stream, or as a body.
  virtual std::string error_event(const ApiError& error) const;
  virtual Json error_body(const ApiError& error) const { return openai_error(error); }
  void begin_stream(std::string keep_alive);
  void send_data(const Json& data) { reply_->send("data: " + to_text(data) + "\n\n"); }
  void send_event(const char* name, const Json& data);

  std::shared_ptr<Reply> reply_;
  const bool streams_;
  bool streaming_ = false;
};

/// "timings" of an answer, in llama-server's names and ours.
Json timings_json(const ChoiceFacts& facts);

struct Usage {
  size_t prompt_tokens = 0;
  size_t cached_tokens = 0;
  size_t answer_tokens = 0;
  size_t reasoning_tokens = 0;

  /// `first_choice`: its prompt counts.
  void add(const ChoiceFacts& facts, bool first_choice);
};
Json openai_usage(const Usage& usage);

/// "chatcmpl-" and 24 random letters and digits.
std::string new_id(const char* prefix);
int64_t unix_seconds();

/// A completion's or chat's log probabilities as OpenAI's chat format has them.
Json chat_logprobs(const TextModel& text, std::span<const TokenProbs> probs);
/// A token's text, invalid UTF-8 as it is (to_text replaces it).
std::string token_text(const TextModel& text, int32_t token);

ApiError no_such_slot(int64_t slot, size_t slots);
/// Checks prompts against the context, and the slot that is asked for. Null if all is well.
std::optional<ApiError> check_prompts(const Generation& generation, const ServedModel& model);

/// Hands a generation over; errors reach the sink.
void submit(Call& call, std::unique_ptr<Generation> generation);

/// Sets generation->filter by "response_format", "json_schema" and "grammar". Errors: kInvalidArgument,
/// kUnsupported.
Status read_grammar(const Json& request, const ServedModel& model, Generation* generation);

}  // namespace ganglion::server

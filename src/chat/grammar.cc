// Calls the Rust library for grammars, or says that it is not there.
#include "ganglion/grammar.h"

#ifdef GANGLION_HAS_RUST

#include <limits>
#include <mutex>
#include <vector>

#include "chat/chat_rust.h"

namespace ganglion {

namespace {

Status take_status(int status, ganglion_chat_text text) {
  const std::string message(text.data, text.size);
  ganglion_chat_free(text);
  switch (status) {
    case GANGLION_CHAT_OK:
      return ok_status();
    case GANGLION_CHAT_BAD_REQUEST:
      return {Code::kInvalidArgument, "not a grammar that can be enforced: " + message};
    case GANGLION_CHAT_UNSUPPORTED:
      return {Code::kUnsupported, "grammar: " + message};
    case GANGLION_CHAT_LIMIT:
      return {Code::kResources, "grammar: " + message};
    default:
      return {Code::kInternal, "grammar: " + message};
  }
}

class GrammarFilter final : public TokenFilter {
 public:
  GrammarFilter(ganglion_grammar* grammar, size_t vocab) : grammar_(grammar), words_((vocab + 31) / 32) {}
  ~GrammarFilter() override { ganglion_grammar_free(grammar_); }
  GrammarFilter(const GrammarFilter&) = delete;
  GrammarFilter& operator=(const GrammarFilter&) = delete;

  Status mask(std::span<float> logits) override {
    ganglion_chat_text message = {};
    const int code = ganglion_grammar_mask(grammar_, words_.data(), words_.size(), &message);
    const Status status = take_status(code, message);
    if (!status.ok()) return status;
    for (size_t token = 0; token < logits.size(); ++token) {
      const bool allowed = token / 32 < words_.size() && (words_[token / 32] >> (token % 32) & 1) != 0;
      if (!allowed) logits[token] = -std::numeric_limits<float>::infinity();
    }
    return ok_status();
  }

  Status accept(int32_t token) override {
    ganglion_chat_text message = {};
    const int code = ganglion_grammar_accept(grammar_, static_cast<uint32_t>(token), &message);
    return take_status(code, message);
  }

  void reset() override {
    ganglion_chat_text message = {};
    const int code = ganglion_grammar_reset(grammar_, &message);
    (void)take_status(code, message);
  }

 private:
  ganglion_grammar* grammar_;
  std::vector<uint32_t> words_;
};

}  // namespace

struct GrammarVocabulary::State {
  const TextModel* text = nullptr;
  std::mutex mutex;
  ganglion_vocabulary* vocabulary = nullptr;  ///< Made with the first filter.
};

bool grammar_available() {
  return true;
}

GrammarVocabulary::GrammarVocabulary(const TextModel& text) : state_(new State) {
  state_->text = &text;
}

GrammarVocabulary::~GrammarVocabulary() {
  ganglion_vocabulary_free(state_->vocabulary);
}

namespace {

Result<ganglion_vocabulary*> make_vocabulary(const TextModel& text) {
  std::string data;
  std::vector<uint64_t> ends;
  std::vector<uint8_t> special;
  std::vector<uint32_t> eos;
  for (int32_t token = 0; token < text.vocab_size(); ++token) {
    const std::string_view bytes = text.bytes(token);
    // Control tokens have no bytes; grammars may name them.
    special.push_back(bytes.empty() ? 1 : 0);
    data += bytes.empty() ? text.token_name(token) : std::string(bytes);
    ends.push_back(data.size());
    if (text.is_end_of_generation(token)) eos.push_back(static_cast<uint32_t>(token));
  }
  ganglion_vocabulary* vocabulary = nullptr;
  ganglion_chat_text message = {};
  const int code = ganglion_vocabulary_new(data.data(), ends.data(), special.data(), ends.size(), eos.data(),
                                           eos.size(), &vocabulary, &message);
  const Status status = take_status(code, message);
  if (!status.ok()) return status;
  return vocabulary;
}

}  // namespace

Result<std::unique_ptr<TokenFilter>> GrammarVocabulary::filter(GrammarKind kind, const std::string& text) {
  {
    const std::lock_guard<std::mutex> lock(state_->mutex);
    if (state_->vocabulary == nullptr) {
      const Result<ganglion_vocabulary*> made = make_vocabulary(*state_->text);
      if (!made.ok()) return made.status();
      state_->vocabulary = made.value();
    }
  }
  ganglion_grammar* grammar = nullptr;
  ganglion_chat_text message = {};
  const int code = ganglion_grammar_new(state_->vocabulary, static_cast<int>(kind), text.data(), text.size(),
                                        &grammar, &message);
  const Status status = take_status(code, message);
  if (!status.ok()) return status;
  return std::unique_ptr<TokenFilter>(
      std::make_unique<GrammarFilter>(grammar, static_cast<size_t>(state_->text->vocab_size())));
}

}  // namespace ganglion

#else

namespace ganglion {

struct GrammarVocabulary::State {};

bool grammar_available() {
  return false;
}

GrammarVocabulary::GrammarVocabulary(const TextModel& /*text*/) {}

GrammarVocabulary::~GrammarVocabulary() = default;

Result<std::unique_ptr<TokenFilter>> GrammarVocabulary::filter(GrammarKind /*kind*/,
                                                               const std::string& /*text*/) {
  return Status(Code::kUnsupported,
                "built without grammars (no Rust): install cargo and configure with -DGANGLION_RUST=ON");
}

}  // namespace ganglion

#endif

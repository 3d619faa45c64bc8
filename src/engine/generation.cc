#include "ganglion/generation.h"

#include <algorithm>

#include "base/status.h"
#include "engine/model_draft.h"
#include "engine/prompt_lookup.h"
#include "platform/clock.h"

namespace ganglion {

namespace {

// After drafts did not pay, so many tokens are generated singly before the next try.
constexpr size_t kPauseTokens = 32;
// Weight of the newest pass in the averages.
constexpr double kNewest = 0.25;

/// Keeps the logits of all positions of a pass, from `first` on.
class KeepLogits final : public LogitSink {
 public:
  void start(size_t first) {
    first_ = first;
    count_ = 0;
  }
  void logits(size_t position, std::span<const float> values) override {
    const size_t row = position - first_;
    if (rows_.size() <= row) rows_.resize(row + 1);
    rows_[row].assign(values.begin(), values.end());
    count_ = std::max(count_, row + 1);
  }
  std::span<const float> row(size_t i) const { return rows_[i]; }

 private:
  size_t first_ = 0;
  size_t count_ = 0;
  std::vector<std::vector<float>> rows_;
};

/// Time per token of single and of drafting passes.
struct Pace {
  double single_ns = 0;
  double drafted_ns = 0;
  size_t pause = 0;

  void add(double* average, double value) {
    *average = *average == 0 ? value : (1 - kNewest) * *average + kNewest * value;
  }
  bool pays() const { return single_ns == 0 || drafted_ns == 0 || drafted_ns < single_ns; }
};

}  // namespace

struct Generator::State {
  State(Session& for_session, Sampler& by_sampler, const GenerationOptions& with_options)
      : session(for_session), sampler(by_sampler), options(with_options) {
    if (options.drafter != nullptr)
      drafter = std::make_unique<engine::ModelDrafter>(*options.drafter, session.vocab_size());
  }

  Session& session;
  Sampler& sampler;
  GenerationOptions options;
  std::unique_ptr<engine::ModelDrafter> drafter;
  std::vector<int32_t> history;   // evaluated, then `pending` if has_pending
  bool has_pending = false;       // the last of history is not evaluated yet
  std::vector<int32_t> produced;  // by the last step
  std::vector<int32_t> pass;
  KeepLogits kept;
  Pace pace;
  GenerationStats stats;

  Result<size_t> draft(size_t most, const std::atomic<bool>* cancel);
  Status sample_from(std::span<const float> logits, int32_t* token);
};

Generator::Generator(Session& session, Sampler& sampler, const GenerationOptions& options)
    : state_(new State(session, sampler, options)) {}

Generator::~Generator() = default;

Status Generator::prompt(std::span<const int32_t> held, std::span<const int32_t> tokens,
                         const std::atomic<bool>* cancel, size_t piece,
                         void (*progress)(void*, uint64_t, uint64_t), void* context) {
  State& s = *state_;
  GANGLION_CHECK(held.size() == s.session.position() && piece > 0);
  s.history.assign(held.begin(), held.end());
  s.has_pending = false;
  if (tokens.empty()) return Status(Code::kInvalidArgument, "the prompt has no tokens");
  // Refused as a whole if it does not fit, before any of it is evaluated.
  if (tokens.size() > s.session.context() - s.session.position()) piece = tokens.size();
  Status status;
  for (size_t at = 0; at < tokens.size() && status.ok();) {
    const size_t count = std::min(piece, tokens.size() - at);
    status = s.session.evaluate(tokens.subspan(at, count), cancel);
    at += count;
    if (progress != nullptr) progress(context, at, tokens.size());
  }
  const size_t done = s.session.position() - held.size();
  s.history.insert(s.history.end(), tokens.begin(), tokens.begin() + static_cast<ptrdiff_t>(done));
  s.sampler.reset();
  s.sampler.add_prompt(s.history);
  return status;
}

Status Generator::State::sample_from(std::span<const float> logits, int32_t* token) {
  const Result<int32_t> chosen = sampler.sample(logits);
  if (!chosen.ok()) return chosen.status();
  *token = chosen.value();
  produced.push_back(*token);
  ++stats.tokens;
  return sampler.accept(*token);
}

// Appends a draft to `pass`, as long as drafting pays and the context holds it. Returns its length.
// Errors: those of the drafting model.
Result<size_t> Generator::State::draft(size_t most, const std::atomic<bool>* cancel) {
  const size_t room = session.context() - session.position() - 1;
  const size_t limit = std::min({options.most_drafted, most - 1, room});
  if (limit == 0) return size_t{0};
  if (!options.always_draft && pace.pause > 0) {
    --pace.pause;
    return size_t{0};
  }
  pass.resize(1 + limit);
  const std::span<int32_t> to(pass.data() + 1, limit);
  size_t count = 0;
  if (drafter != nullptr) {
    GANGLION_ASSIGN_OR_RETURN(count, drafter->draft(history, to, cancel));
  } else {
    count = engine::draft_by_lookup(history, to);
  }
  pass.resize(1 + count);
  return count;
}

Result<std::span<const int32_t>> Generator::step(size_t most, const std::atomic<bool>* cancel) {
  State& s = *state_;
  s.produced.clear();
  int32_t token = 0;
  if (!s.has_pending) {
    GANGLION_RETURN_IF_ERROR(s.sample_from(s.session.logits(), &token));
    s.history.push_back(token);
    s.has_pending = true;
    return std::span<const int32_t>(s.produced);
  }
  s.pass.assign(1, s.history.back());
  const size_t before = s.session.position();
  const int64_t start = platform::now_ns();
  GANGLION_ASSIGN_OR_RETURN(const size_t drafted, s.draft(most, cancel));
  s.kept.start(before);
  GANGLION_RETURN_IF_ERROR(
      s.session.evaluate(s.pass, cancel, drafted > 0 ? &s.kept : nullptr, Phase::kGeneration));
  const auto pass_ns = static_cast<double>(platform::now_ns() - start);
  // Each choice decides whether the next draft was evaluated in the right place.
  size_t right = 0;
  for (;;) {
    GANGLION_RETURN_IF_ERROR(s.sample_from(drafted > 0 ? s.kept.row(right) : s.session.logits(), &token));
    s.history.push_back(token);
    if (right == drafted || s.pass[1 + right] != token) break;
    ++right;
  }
  if (right < drafted && !s.session.try_rewind(before + 1 + right)) {
    return Status(Code::kInternal, "the KV cache could not forget drafted tokens");
  }
  ++s.stats.passes;
  s.stats.drafted += drafted;
  s.stats.accepted += right;
  s.pace.add(drafted > 0 ? &s.pace.drafted_ns : &s.pace.single_ns, pass_ns / static_cast<double>(1 + right));
  if (drafted > 0 && !s.pace.pays()) {
    s.pace.pause = kPauseTokens;
    s.pace.drafted_ns = 0;
  }
  return std::span<const int32_t>(s.produced);
}

std::span<const int32_t> Generator::history() const {
  const std::span<const int32_t> all = state_->history;
  return state_->has_pending ? all.first(all.size() - 1) : all;
}

const GenerationStats& Generator::stats() const {
  return state_->stats;
}

}  // namespace ganglion

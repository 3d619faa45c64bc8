#include "calibration/pack_judge.h"

#include <algorithm>

namespace ganglion::calibration {

namespace {

// Windows are a prompt of so many tokens, which is exact either way, and as many that are judged.
constexpr size_t kHalfWindow = 64;
constexpr size_t kStep = 8;  // Tokens between looks at whether to go on.

/// Writes log probabilities of the judged halves to the file, or compares them with what it holds.
class JudgeSink final : public LogitSink {
 public:
  JudgeSink(ProbabilityFile* file, bool compare) : file_(file), compare_(compare) { file_->rewind(); }
  void logits(size_t position, std::span<const float> logits) override {
    if (position < kHalfWindow) return;
    log_softmax(logits, &log_p_);
    base_.resize(log_p_.size());
    broken_ |= !(compare_ ? file_->try_read(&base_) : file_->try_write(log_p_));
    if (!compare_) return;
    divergence_ += kl_divergence(base_, log_p_);
    same_top_ += most_likely(base_) == most_likely(log_p_) ? 1 : 0;
    ++tokens_;
  }
  bool broken() const { return broken_; }
  Judgement judgement() const {
    const double n = static_cast<double>(std::max<size_t>(tokens_, 1));
    return {divergence_ / n, same_top_ / n, tokens_};
  }

 private:
  ProbabilityFile* file_;
  bool compare_;
  std::vector<float> log_p_, base_;
  double divergence_ = 0;
  double same_top_ = 0;
  size_t tokens_ = 0;
  bool broken_ = false;
};

}  // namespace

Status PackJudge::run_windows(Engine& engine, bool sparse, LogitSink* sink) {
  const size_t windows = tokens_.size() / (2 * kHalfWindow);
  auto session = engine.new_session();
  if (!session.ok()) return session.status();
  for (size_t i = 0; i < windows; ++i) {
    const std::span<const int32_t> all(tokens_.data() + i * 2 * kHalfWindow, 2 * kHalfWindow);
    session.value()->reset();
    for (size_t at = 0; at < all.size();) {
      if (progress_ != nullptr && !progress_(context_, sparse ? "judging" : "judging, exact",
                                             i * all.size() + at, windows * all.size()))
        return Status(Code::kCancelled, "interrupted");
      const bool judged = at >= kHalfWindow;
      // What is exact goes through the model in two parts.
      const size_t count = judged && sparse ? kStep : kHalfWindow;
      const Status status =
          session.value()->evaluate(all.subspan(at, count), nullptr, judged ? sink : nullptr,
                                    judged && sparse ? Phase::kGeneration : Phase::kPrompt);
      if (!status.ok()) return status;
      at += count;
    }
  }
  return ok_status();
}

Result<std::unique_ptr<Engine>> PackJudge::open(const std::string& path) const {
  EngineOptions options = options_;
  options.model_path = path;
  Result<std::unique_ptr<Engine>> engine = Engine::open(options);
  if (!engine.ok()) return engine;
  const Status loaded = engine.value()->load(nullptr, nullptr);
  if (!loaded.ok()) return loaded;
  return engine;
}

Result<Judgement> PackJudge::judge() {
  std::unique_ptr<Engine> engine;
  Status status;
  const auto use = [&](const std::string& path) {
    engine.reset();  // Both at once would take twice the budget.
    Result<std::unique_ptr<Engine>> opened = open(path);
    status = opened.status();
    if (status.ok()) engine = opened.take();
    return status.ok();
  };
  const Status no_room(Code::kIo, "cannot keep probabilities in a temporary file beside the pack");
  if (!has_base_) {
    if (!use(exact_path_)) return status;
    JudgeSink keep(&base_, false);
    status = run_windows(*engine, false, &keep);
    if (!status.ok()) return status;
    if (keep.broken()) return no_room;
    has_base_ = true;
  }
  if ((engine == nullptr || exact_path_ != options_.model_path) && !use(options_.model_path)) return status;
  JudgeSink compare(&base_, true);
  status = run_windows(*engine, true, &compare);
  if (!status.ok()) return status;
  if (compare.broken()) return no_room;
  return compare.judgement();
}

}  // namespace ganglion::calibration

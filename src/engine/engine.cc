// The public Engine and Session: turns, chunks, poisoning.
#include "ganglion/engine.h"

#include <algorithm>
#include <vector>

#include "base/units.h"
#include "engine/open_with_device.h"
#include "engine/runtime.h"
#include "platform/clock.h"
#include "platform/memory.h"

namespace ganglion {

using engine::Row;
using engine::Runtime;

namespace {

/// Hands a pass's logits to the session's own copy and to the caller's sink.
class SessionSink final : public engine::PassSink {
 public:
  SessionSink(std::span<const Row> rows, LogitSink* caller, std::vector<float>* last)
      : rows_(rows), caller_(caller), last_(last) {}
  void logits(size_t row, std::span<const float> logits) override {
    if (caller_ != nullptr) caller_->logits(rows_[row].position, logits);
    if (row + 1 == rows_.size()) last_->assign(logits.begin(), logits.end());
  }
  void hidden(size_t layer, std::span<const float> hidden) override {
    if (caller_ != nullptr) caller_->hidden(layer, hidden);
  }
  void ffn_input(size_t layer, size_t row, std::span<const float> x) override {
    if (caller_ != nullptr) caller_->ffn_input(layer, rows_[row].position, x);
  }

 private:
  std::span<const Row> rows_;
  LogitSink* caller_;
  std::vector<float>* last_;
};

class SessionImpl final : public Session {
 public:
  explicit SessionImpl(Runtime& runtime)
      : runtime_(runtime), sequence_(runtime.kv_pages(), runtime.config(), runtime.plan().context) {
    rows_.reserve(runtime.chunk());
    logits_.reserve(runtime.config().vocab);
  }

  ~SessionImpl() override {
    const std::lock_guard<std::mutex> turn(runtime_.mutex());
    sequence_.clear();
  }

  Status evaluate(std::span<const int32_t> tokens, const std::atomic<bool>* cancel, LogitSink* sink,
                  Phase phase) override {
    GANGLION_RETURN_IF_ERROR(check(tokens));
    const std::lock_guard<std::mutex> turn(runtime_.mutex());
    const bool exact = phase == Phase::kPrompt || !runtime_.sparse();
    const size_t chunk = runtime_.most_rows(exact);
    runtime_.react_to_pressure();
    runtime_.react_to_device();
    logits_.clear();
    GANGLION_RETURN_IF_ERROR(runtime_.make_room(std::min(chunk, tokens.size())));
    for (size_t begin = 0; begin < tokens.size(); begin += chunk) {
      const size_t end = std::min(tokens.size(), begin + chunk);
      const bool next_is_last = end == tokens.size() || end + chunk >= tokens.size();
      // After the last chunk of a prompt, or a token, a token is likely to come.
      const engine::PassMode mode = {.exact = exact,
                                     .next_exact = exact && (end < tokens.size() || !runtime_.sparse()),
                                     .next_output = next_is_last || sink != nullptr};
      const Status status =
          evaluate_chunk(tokens.subspan(begin, end - begin), end == tokens.size(), mode, cancel, sink);
      if (status.ok()) continue;
      runtime_.restart_reading();
      poisoned_ = status.code() != Code::kCancelled;
      return status;
    }
    return ok_status();
  }

  std::span<const float> logits() const override { return logits_; }
  size_t position() const override { return sequence_.length(); }
  size_t context() const override { return runtime_.plan().context; }
  size_t vocab_size() const override { return runtime_.config().vocab; }

  bool try_rewind(size_t position) override {
    const std::lock_guard<std::mutex> turn(runtime_.mutex());
    if (poisoned_ || position > sequence_.length() || !sequence_.try_rewind(position)) return false;
    logits_.clear();
    return true;
  }

  Status fork_from(const Session& other) override {
    const auto& from = static_cast<const SessionImpl&>(other);
    const std::lock_guard<std::mutex> turn(runtime_.mutex());
    GANGLION_CHECK(&from.runtime_ == &runtime_ && sequence_.length() == 0);
    if (from.poisoned_) return Status(Code::kPoisoned, "the session to copy failed before and was not reset");
    sequence_.fork_from(from.sequence_);
    logits_ = from.logits_;
    return ok_status();
  }

  Result<uint64_t> save(const std::string& path, std::span<const int32_t> tokens,
                        uint64_t most_bytes) override {
    const std::lock_guard<std::mutex> turn(runtime_.mutex());
    if (poisoned_) return Status(Code::kPoisoned, "the session failed before and was not reset");
    if (sequence_.length() == 0 || sequence_.length() != tokens.size()) {
      return Status(Code::kInvalidArgument, base::format("%zu tokens do not name the %zu positions to save",
                                                         tokens.size(), sequence_.length()));
    }
    GANGLION_ASSIGN_OR_RETURN(const engine::KvOrigin* origin, runtime_.kv_origin());
    return engine::save_sequence(path, runtime_.config(), *origin, sequence_, tokens, most_bytes);
  }

  Result<std::vector<int32_t>> restore(const std::string& path) override {
    const std::lock_guard<std::mutex> turn(runtime_.mutex());
    GANGLION_ASSIGN_OR_RETURN(const engine::KvOrigin* origin, runtime_.kv_origin());
    const auto make_room = [&](size_t pages) {
      logits_.clear();
      poisoned_ = false;
      return take_pages(pages);
    };
    return engine::restore_sequence(path, runtime_.config(), *origin, context(), make_room, &sequence_);
  }

  void reset() override {
    const std::lock_guard<std::mutex> turn(runtime_.mutex());
    sequence_.clear();
    logits_.clear();
    poisoned_ = false;
  }

  // Parts of Engine::evaluate_batch, under the runtime's mutex.
  Status check(std::span<const int32_t> tokens) const {
    if (poisoned_) return Status(Code::kPoisoned, "the session failed before and was not reset");
    if (tokens.empty()) return Status(Code::kInvalidArgument, "no token to evaluate");
    const uint32_t vocab = runtime_.config().vocab;
    for (const int32_t token : tokens) {
      if (token < 0 || static_cast<uint32_t>(token) >= vocab) {
        return Status(Code::kInvalidArgument,
                      base::format("token %d is outside the vocabulary of %u", token, vocab));
      }
    }
    if (tokens.size() > context() - position()) {
      return Status(
          Code::kContextOverflow,
          base::format("%zu tokens after the %zu that are there exceed the context of %zu - raise it with -c",
                       tokens.size(), position(), context()));
    }
    return ok_status();
  }

  Status prepare(size_t count) {
    GANGLION_RETURN_IF_ERROR(take_pages(sequence_.pages_missing(count)));
    return sequence_.prepare(count);
  }
  Row next_row(int32_t token) {
    return {.token = token, .position = sequence_.length(), .sequence = &sequence_, .wants_logits = true};
  }
  void advance(std::span<const float> logits) {
    sequence_.advance(1);
    logits_.assign(logits.begin(), logits.end());
  }
  void poison() {
    logits_.clear();
    poisoned_ = true;
  }

 private:
  Status take_pages(size_t missing) {
    const size_t free = runtime_.kv_pages().free_count();
    return missing > free ? runtime_.grow_kv(missing - free) : ok_status();
  }

  Status evaluate_chunk(std::span<const int32_t> tokens, bool last, const engine::PassMode& mode,
                        const std::atomic<bool>* cancel, LogitSink* sink) {
    GANGLION_RETURN_IF_ERROR(prepare(tokens.size()));
    rows_.clear();
    for (size_t i = 0; i < tokens.size(); ++i) {
      rows_.push_back({.token = tokens[i],
                       .position = sequence_.length() + i,
                       .sequence = &sequence_,
                       .wants_logits = sink != nullptr || (last && i + 1 == tokens.size())});
    }
    SessionSink to(rows_, sink, &logits_);
    const int64_t start = platform::now_ns();
    const Status status = runtime_.forward().run(rows_, mode, cancel, &to);
    runtime_.add_pass_ns(platform::now_ns() - start);
    GANGLION_RETURN_IF_ERROR(status);
    sequence_.advance(tokens.size());
    return ok_status();
  }

  Runtime& runtime_;
  model::KvSequence sequence_;
  std::vector<Row> rows_;
  std::vector<float> logits_;
  bool poisoned_ = false;
};

/// Keeps the logits [rows][V] of a pass over several sessions.
class BatchSink final : public engine::PassSink {
 public:
  explicit BatchSink(std::span<SessionImpl* const> sessions) : sessions_(sessions) {}
  void logits(size_t row, std::span<const float> logits) override { sessions_[row]->advance(logits); }

 private:
  std::span<SessionImpl* const> sessions_;
};

class EngineImpl final : public Engine {
 public:
  explicit EngineImpl(std::unique_ptr<Runtime> runtime) : runtime_(std::move(runtime)) {}

  const PlanSummary& plan() const override { return runtime_->summary(); }
  const TextModel& text() const override { return runtime_->text(); }
  Status load(bool (*progress)(void*, uint64_t, uint64_t), void* context) override {
    return runtime_->load(progress, context);
  }
  Status set_budget(uint64_t bytes) override {
    const std::lock_guard<std::mutex> turn(runtime_->mutex());
    GANGLION_CHECK(runtime_->loaded());
    return runtime_->set_budget(bytes);
  }
  Result<std::unique_ptr<Session>> new_session() override {
    GANGLION_CHECK(runtime_->loaded());
    return std::unique_ptr<Session>(std::make_unique<SessionImpl>(*runtime_));
  }
  Status evaluate_batch(std::span<Session* const> sessions, std::span<const int32_t> tokens,
                        Phase phase) override {
    GANGLION_CHECK(!sessions.empty() && sessions.size() == tokens.size());
    const std::lock_guard<std::mutex> turn(runtime_->mutex());
    batch_.clear();
    for (size_t i = 0; i < sessions.size(); ++i) {
      batch_.push_back(static_cast<SessionImpl*>(sessions[i]));
      GANGLION_RETURN_IF_ERROR(batch_[i]->check(tokens.subspan(i, 1)));
    }
    runtime_->react_to_pressure();
    runtime_->react_to_device();
    for (SessionImpl* session : batch_) GANGLION_RETURN_IF_ERROR(session->prepare(1));
    const bool exact = phase == Phase::kPrompt || !runtime_->sparse();
    const size_t most = runtime_->most_rows(exact);
    GANGLION_RETURN_IF_ERROR(runtime_->make_room(std::min(most, batch_.size())));
    const int64_t start = platform::now_ns();
    Status status;
    for (size_t begin = 0; begin < batch_.size() && status.ok(); begin += most) {
      const std::span<SessionImpl* const> part =
          std::span(batch_).subspan(begin, std::min(most, batch_.size() - begin));
      rows_.clear();
      for (size_t i = 0; i < part.size(); ++i) rows_.push_back(part[i]->next_row(tokens[begin + i]));
      BatchSink sink(part);
      status = runtime_->forward().run(rows_, {.exact = exact, .next_exact = exact}, nullptr, &sink);
    }
    runtime_->add_pass_ns(platform::now_ns() - start);
    if (!status.ok()) {
      runtime_->restart_reading();
      for (SessionImpl* session : batch_) session->poison();
    }
    return status;
  }
  EngineStats stats() const override {
    const std::lock_guard<std::mutex> turn(runtime_->mutex());
    if (!runtime_->loaded()) return {};
    const neuron_stream::StreamStats s = runtime_->stream().stats();
    EngineStats all = {.device_bytes = s.device_bytes,
                       .cached_bytes = s.cached_bytes,
                       .reads = s.reads,
                       .expert_hits = s.expert_hits,
                       .expert_misses = s.expert_misses,
                       .ahead_reads = s.ahead_reads,
                       .ahead_used = s.ahead_used,
                       .ahead_wasted = s.ahead_wasted,
                       .look_ahead_on = runtime_->forward().look_ahead_pays(),
                       .io_wait_ns = s.wait_ns,
                       .pass_ns = runtime_->pass_ns()};
    if (runtime_->bundles() != nullptr) {
      const neuron_stream::BundleStats& b = runtime_->bundles()->stats();
      all.io_wait_ns += b.wait_ns;
      all.neurons_resident = b.prefix_uses;
      all.neurons_cached = b.cache_uses;
      all.neurons_read = b.misses;
      all.neurons_ahead = b.ahead_reads;
      all.neurons_ahead_used = b.ahead_used;
    }
    if (runtime_->hot() != nullptr) {
      const engine::HotStats& h = runtime_->hot()->stats();
      all.hot_calls = h.calls;
      all.hot_calls_ahead = h.ahead;
      all.hot_recomputed = h.recomputed;
      all.hot_wait_ns = h.wait_ns;
      all.device_lost = h.lost;
    }
    return all;
  }
  void set_recall_sink(std::vector<NeuronRecall>* layers) override {
    const std::lock_guard<std::mutex> turn(runtime_->mutex());
    GANGLION_CHECK(runtime_->loaded());
    runtime_->forward().set_recall_sink(layers);
  }
  void set_routing_sink(RoutingSink* sink) override {
    const std::lock_guard<std::mutex> turn(runtime_->mutex());
    GANGLION_CHECK(runtime_->loaded());
    runtime_->forward().set_routing_sink(sink);
  }

 private:
  std::unique_ptr<Runtime> runtime_;
  std::vector<SessionImpl*> batch_;  // of evaluate_batch
  std::vector<Row> rows_;            // likewise
};

}  // namespace

MemoryPeak memory_peak() {
  return {platform::read_process_memory().peak_bytes, platform::read_cgroup_peak()};
}

void prefer_as_memory_victim() {
  platform::raise_oom_score();
}

Result<std::unique_ptr<Engine>> Engine::open(const EngineOptions& options) {
  return engine::open_with_device(options, nullptr);
}

Result<std::unique_ptr<Engine>> engine::open_with_device(const EngineOptions& options,
                                                         std::unique_ptr<accelerator::Backend> device) {
  GANGLION_ASSIGN_OR_RETURN(std::unique_ptr<Runtime> runtime, Runtime::open(options, std::move(device)));
  return std::unique_ptr<Engine>(std::make_unique<EngineImpl>(std::move(runtime)));
}

}  // namespace ganglion

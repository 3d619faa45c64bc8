// Turns requests into tokens: slots with a session each, a bounded queue in the order of arrival, prompts in
// chunks between passes that decode all sequences at once. The engine is used on one thread only.
//
//   request --submit--> queue --a slot is free--> prompt --last chunk--> decode --end, limit--> done
//   further choices of a prompt wait in the queue until the first has evaluated it, and share its KV pages.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>

#include "ganglion/engine.h"
#include "server/generation_task.h"
#include "server/stop_text.h"

namespace ganglion::server {

/// Totals since the start; what /metrics tells.
struct Totals {
  uint64_t prompt_tokens = 0;  ///< Evaluated.
  double prompt_s = 0;
  uint64_t cached_tokens = 0;
  uint64_t answer_tokens = 0;
  double answer_s = 0;  ///< Of decoding passes.
  uint64_t decode_passes = 0;
  uint64_t decoded_rows = 0;  ///< Sequences in those passes.
  uint64_t requests = 0;
  uint64_t refused = 0;    ///< The queue was full.
  uint64_t cancelled = 0;  ///< Clients that left.
  uint64_t failed = 0;
  uint64_t most_tokens = 0;  ///< Longest sequence.
};

struct SlotState {
  bool busy = false;
  size_t held_tokens = 0;
  size_t prompt_tokens = 0;
  size_t generated = 0;
};

/// A copy of what others may look at, refreshed between passes.
struct EngineView {
  PlanSummary plan;
  EngineStats stats;
  Totals totals;
  std::vector<SlotState> slots;
  size_t queued = 0;
};

class Scheduler {
 public:
  /// Errors: kResources (no memory for the sessions).
  static Result<std::unique_ptr<Scheduler>> create(Engine& engine, size_t slots, size_t most_queued);
  ~Scheduler();

  /// Any thread. False where the queue is full or the server stops; the sink is then told.
  bool submit(std::unique_ptr<Generation> generation);

  /// Any thread. `action.slot` is below slot_count(); actions of a slot are done in their order.
  void submit(SlotAction action);

  /// The engine's thread: works until `stop`, then until all that runs has finished or is cancelled.
  void run(const std::atomic<bool>& stop, const std::function<void()>& between_passes);

  EngineView view() const;
  size_t context() const { return context_; }
  size_t slot_count() const { return slots_.size(); }

 private:
  struct Request;
  struct Task;
  struct Slot;

  Scheduler(Engine& engine, size_t most_queued);

  void admit();
  void drop_cancelled(bool stopping);
  bool decode();
  bool evaluate_prompt();
  void assign(Slot& slot, std::unique_ptr<Task> task);
  Slot* choose_slot(const Task& task) const;
  void act_on_slots();
  Result<SlotOutcome> act(Slot& slot, const SlotAction& action);
  void take_prefix(Slot& slot, Task& task);
  Status make_sampler(Task& task);
  void guarded(Slot& slot, const std::function<void()>& body);
  void prompt_evaluated(Slot& slot, bool last, std::span<const float> hidden);
  void prompt_done(Slot& slot);
  bool forget_idle();
  void next_token(Slot& slot);
  void end_task(Slot& slot, Finish finish);
  void fail_task(Slot& slot, const Status& status);
  void fail_request(Request& request, const ApiError& error);
  void release(Slot& slot);
  void account(Task& task, const EngineStats& before, double share, double ms, bool prompt);
  void publish(bool now);
  bool idle() const;

  Engine& engine_;
  const size_t most_queued_;
  size_t context_ = 0;
  std::vector<LogitBias> end_bans_;  ///< What "ignore_eos" adds.
  std::vector<std::unique_ptr<Slot>> slots_;
  size_t next_prompt_slot_ = 0;
  Totals totals_;
  int64_t published_ns_ = 0;

  mutable std::mutex mutex_;  ///< Guards what follows.
  std::condition_variable wake_;
  std::list<std::unique_ptr<Task>> queue_;
  std::list<SlotAction> actions_;
  size_t queued_requests_ = 0;
  uint64_t refused_ = 0;
  bool closed_ = false;
  EngineView view_;
};

}  // namespace ganglion::server

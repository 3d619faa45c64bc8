#include "server/scheduler.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <limits>
#include <utility>

#include "server/scheduler_parts.h"

namespace ganglion::server {

namespace {

constexpr auto kIdleWait = std::chrono::milliseconds(100);
constexpr int64_t kPublishNs = 50'000'000;

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

double ms_since(int64_t start_ns) {
  return static_cast<double>(now_ns() - start_ns) / 1e6;
}

size_t common_prefix(const std::vector<int32_t>& a, const std::vector<int32_t>& b) {
  const size_t most = std::min(a.size(), b.size());
  return static_cast<size_t>(
      std::mismatch(a.begin(), a.begin() + static_cast<ptrdiff_t>(most), b.begin()).first - a.begin());
}

constexpr const char* kStopping = "the server is stopping";

ApiError stopping_error() {
  return api_error(Status(Code::kResources, kStopping));
}

// Keeps what a pass computes last for the last token: the final norm's output.
class KeepHidden final : public LogitSink {
 public:
  void logits(size_t, std::span<const float>) override {}
  void hidden(size_t, std::span<const float> hidden) override {
    values_.assign(hidden.begin(), hidden.end());
  }
  std::span<const float> values() const { return values_; }

 private:
  std::vector<float> values_;
};

}  // namespace

Scheduler::Scheduler(Engine& engine, size_t most_queued)
    : engine_(engine), most_queued_(most_queued), context_(engine.plan().context) {
  const TextModel& text = engine.text();
  for (int32_t token = 0; token < text.vocab_size(); ++token) {
    if (text.is_end_of_generation(token))
      end_bans_.push_back({token, -std::numeric_limits<float>::infinity()});
  }
}

Scheduler::~Scheduler() = default;

Result<std::unique_ptr<Scheduler>> Scheduler::create(Engine& engine, size_t slots, size_t most_queued) {
  std::unique_ptr<Scheduler> scheduler(new Scheduler(engine, most_queued));
  for (size_t i = 0; i < slots; ++i) {
    Result<std::unique_ptr<Session>> session = engine.new_session();
    if (!session.ok()) return session.status();
    scheduler->slots_.push_back(std::make_unique<Slot>());
    scheduler->slots_.back()->session = session.take();
  }
  scheduler->publish(true);
  return scheduler;
}

bool Scheduler::submit(std::unique_ptr<Generation> generation) {
  auto request = std::make_shared<Request>();
  request->open_choices = generation->prompts.size() * generation->choices;
  request->prompt_done.resize(generation->prompts.size());
  request->generation = std::move(generation);
  const std::lock_guard<std::mutex> lock(mutex_);
  if (closed_) {
    request->sink().failed(stopping_error());
    return false;
  }
  if (queued_requests_ >= most_queued_) {
    ++refused_;
    ApiError error = api_error(Status(
        Code::kResources, "the queue is full: " + std::to_string(queued_requests_) + " requests wait"));
    error.http = 429;
    error.type = "rate_limit_error";
    request->sink().failed(error);
    return false;
  }
  request->sink().started();
  for (size_t choice = 0; choice < request->open_choices; ++choice) {
    auto task = std::make_unique<Task>();
    task->request = request;
    task->choice = choice;
    task->prompt_index = choice / request->generation->choices;
    queue_.push_back(std::move(task));
  }
  ++queued_requests_;
  wake_.notify_one();
  return true;
}

void Scheduler::submit(SlotAction action) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (closed_) return action.done(Status(Code::kResources, kStopping));
  actions_.push_back(std::move(action));
  wake_.notify_one();
}

bool Scheduler::idle() const {
  return std::none_of(slots_.begin(), slots_.end(), [](const auto& slot) { return slot->task != nullptr; });
}

void Scheduler::run(const std::atomic<bool>& stop, const std::function<void()>& between_passes) {
  const auto one_round = [&](bool stopping) {
    drop_cancelled(stopping);
    act_on_slots();
    admit();
    const bool decoded = decode();
    const bool prompted = evaluate_prompt();
    if (between_passes) between_passes();
    publish(!decoded && !prompted);
    return decoded || prompted;
  };
  while (!stop) {
    if (one_round(false)) continue;
    std::unique_lock<std::mutex> lock(mutex_);
    if (queue_.empty() && actions_.empty()) wake_.wait_for(lock, kIdleWait);
  }
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    closed_ = true;
    // Those whose first choice runs may go on.
    for (const auto& task : queue_) {
      if (task->request->waiting && !task->request->failed) {
        task->request->failed = true;
        task->request->sink().failed(stopping_error());
      }
    }
    for (const SlotAction& action : actions_) action.done(Status(Code::kResources, kStopping));
    actions_.clear();
  }
  while (one_round(true) || !idle()) {
  }
  publish(true);
}

// Frees the slots and places in the queue of requests that failed or that nobody waits for.
void Scheduler::drop_cancelled(bool stopping) {
  const auto judge = [&](Request& request) {
    if (request.failed || !request.cancelled()) return;
    ++totals_.cancelled;
    fail_request(request, stopping ? stopping_error() : api_error(Status(Code::kCancelled, "cancelled")));
  };
  for (const auto& slot : slots_) {
    if (slot->task == nullptr) continue;
    judge(*slot->task->request);
    if (slot->task->request->failed) release(*slot);
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  for (auto at = queue_.begin(); at != queue_.end();) {
    Request& request = *(*at)->request;
    judge(request);
    if (!request.failed) {
      ++at;
      continue;
    }
    if (std::exchange(request.waiting, false)) --queued_requests_;
    at = queue_.erase(at);
  }
}

// Saves, restores and erases what idle slots hold; others wait until their slots are.
void Scheduler::act_on_slots() {
  for (;;) {
    SlotAction action;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      const auto ready = std::find_if(actions_.begin(), actions_.end(),
                                      [&](const auto& a) { return slots_[a.slot]->task == nullptr; });
      if (ready == actions_.end()) break;
      action = std::move(*ready);
      actions_.erase(ready);
    }
    Result<SlotOutcome> outcome = act(*slots_[action.slot], action);
    publish(true);  // Who is told asks at once.
    action.done(outcome);
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& slot : slots_) slot->claimed = false;
  for (const SlotAction& waiting : actions_) slots_[waiting.slot]->claimed = true;
}

Result<SlotOutcome> Scheduler::act(Slot& slot, const SlotAction& action) {
  const int64_t start = now_ns();
  SlotOutcome outcome;
  if (action.verb == SlotVerb::kErase) {
    outcome.tokens = slot.held.size();
    slot.session->reset();
    slot.held.clear();
  } else if (action.verb == SlotVerb::kSave) {
    const Result<uint64_t> most = action.most_bytes();
    if (!most.ok()) return most.status();
    const Result<uint64_t> bytes = slot.session->save(action.path, slot.held, most.value());
    if (!bytes.ok()) return bytes.status();
    outcome = {.tokens = slot.held.size(), .bytes = bytes.value()};
  } else {
    Result<std::vector<int32_t>> tokens = slot.session->restore(action.path);
    if (tokens.status().code() == Code::kResources && forget_idle())
      tokens = slot.session->restore(action.path);
    if (slot.session->position() != slot.held.size()) slot.held.clear();
    if (!tokens.ok()) return tokens.status();
    slot.held = tokens.take();
    std::error_code gone;
    outcome = {.tokens = slot.held.size(), .bytes = std::filesystem::file_size(action.path, gone)};
  }
  slot.used_ns = now_ns();
  outcome.ms = ms_since(start);
  return outcome;
}

// First come, first served; further choices of a prompt wait for its first one.
void Scheduler::admit() {
  for (;;) {
    std::unique_ptr<Task> task;
    Slot* slot = nullptr;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      const auto ready = std::find_if(queue_.begin(), queue_.end(), [&](const auto& waiting) {
        const bool may_start =
            !waiting->request->failed &&
            (waiting->first_of_prompt() || waiting->request->prompt_done[waiting->prompt_index]);
        slot = may_start ? choose_slot(*waiting) : nullptr;
        return slot != nullptr;
      });
      if (ready == queue_.end()) return;
      task = std::move(*ready);
      queue_.erase(ready);
      if (std::exchange(task->request->waiting, false)) --queued_requests_;
    }
    assign(*slot, std::move(task));
  }
}

// The free slot that holds most of the prompt, if that is most of what it holds; else the one unused longest.
// Null if there is none, or not the one that the request names.
Scheduler::Slot* Scheduler::choose_slot(const Task& task) const {
  const int64_t named = task.request->generation->slot;
  Slot* best = nullptr;
  size_t best_common = 0;
  Slot* oldest = nullptr;
  for (size_t i = 0; i < slots_.size(); ++i) {
    Slot* slot = slots_[i].get();
    if (slot->task != nullptr || slot->claimed || (named >= 0 && static_cast<size_t>(named) != i)) continue;
    if (oldest == nullptr || slot->used_ns < oldest->used_ns) oldest = slot;
    const size_t common = common_prefix(slot->held, task.prompt());
    if (common > best_common && 2 * common >= slot->held.size()) {
      best = slot;
      best_common = common;
    }
  }
  return best != nullptr ? best : oldest;
}

// Keeps what the slot's session shares with the prompt, or copies more of it from another slot. The last
// token is always evaluated: its logits are needed.
void Scheduler::take_prefix(Slot& slot, Task& task) {
  const std::vector<int32_t>& prompt = task.prompt();
  size_t common = task.request->generation->reuse_prefix ? common_prefix(slot.held, prompt) : 0;
  Slot* donor = nullptr;
  for (const auto& other : slots_) {
    const size_t theirs = other.get() == &slot ? 0 : common_prefix(other->held, prompt);
    if (task.request->generation->reuse_prefix && theirs > common) {
      common = theirs;
      donor = other.get();
    }
  }
  if (donor != nullptr) {
    slot.session->reset();
    if (slot.session->fork_from(*donor->session).ok()) {
      slot.held = donor->held;
    } else {
      slot.held.clear();
      common = 0;
    }
  }
  common = std::min(common, prompt.size() - 1);
  if (!slot.session->try_rewind(common)) {
    slot.session->reset();
    common = 0;
  }
  slot.held.resize(common);
  task.facts.cached_tokens = common;
  totals_.cached_tokens += common;
}

Status Scheduler::make_sampler(Task& task) {
  const Generation& generation = *task.request->generation;
  SamplingOptions options = generation.sampling;
  if (options.seed >= 0) options.seed += static_cast<int64_t>(task.choice);
  if (generation.ignore_eos) {
    options.logit_bias.insert(options.logit_bias.end(), end_bans_.begin(), end_bans_.end());
  }
  if (generation.filter != nullptr) {
    Result<std::unique_ptr<TokenFilter>> filter = generation.filter->make();
    if (!filter.ok()) return filter.status();
    task.filter = filter.take();
  }
  const TextModel& text = engine_.text();
  Result<std::unique_ptr<Sampler>> sampler =
      Sampler::create(options, text.vocab_size(), &text, task.filter.get());
  if (!sampler.ok()) return sampler.status();
  task.sampler = sampler.take();
  task.sampler->add_prompt(task.prompt());
  task.facts.seed = task.sampler->seed();
  task.stream = text.new_stream(generation.show_control_tokens);
  task.stop = StopText(generation.stops);
  return ok_status();
}

void Scheduler::assign(Slot& slot, std::unique_ptr<Task> task) {
  slot.task = std::move(task);
  slot.task->facts.prompt_tokens = slot.task->prompt().size();
  take_prefix(slot, *slot.task);
  const Status status = make_sampler(*slot.task);
  if (!status.ok()) fail_task(slot, status);
}

// One chunk of one prompt, by turns. False if there is none.
bool Scheduler::evaluate_prompt() {
  Slot* slot = nullptr;
  for (size_t i = 0; i < slots_.size() && slot == nullptr; ++i) {
    Slot& next = *slots_[(next_prompt_slot_ + i) % slots_.size()];
    if (next.task != nullptr && !next.task->decoding) {
      slot = &next;
      next_prompt_slot_ = (next_prompt_slot_ + i + 1) % slots_.size();
    }
  }
  if (slot == nullptr) return false;
  Task& task = *slot->task;
  const std::span<const int32_t> left = std::span(task.prompt()).subspan(slot->held.size());
  KeepHidden hidden;
  const bool wants_hidden = task.request->generation->only_hidden;
  // Only the last token's hidden state counts, so that it is evaluated alone.
  const size_t most = wants_hidden && left.size() > 1 ? left.size() - 1 : left.size();
  const std::span<const int32_t> chunk = left.first(std::min(engine_.plan().chunk, most));
  const EngineStats before = engine_.stats();
  const int64_t start = now_ns();
  const bool last = chunk.size() == left.size();
  const Status status = slot->session->evaluate(chunk, &task.request->sink().cancelled(),
                                                wants_hidden && last ? &hidden : nullptr);
  const size_t done = slot->session->position() - slot->held.size();
  slot->held.insert(slot->held.end(), chunk.begin(), chunk.begin() + static_cast<ptrdiff_t>(done));
  totals_.prompt_tokens += done;
  account(task, before, 1, ms_since(start), true);
  if (status.code() == Code::kCancelled) return true;  // Dropped in the next round.
  if (!status.ok()) {
    fail_task(*slot, status);
    return true;
  }
  guarded(*slot, [&] { prompt_evaluated(*slot, last, hidden.values()); });
  return true;
}

// Runs what tells the sink; its failure (of memory, most likely) is that request's alone.
void Scheduler::guarded(Slot& slot, const std::function<void()>& body) {
  try {
    body();
  } catch (const std::exception& error) {
    if (slot.task != nullptr)
      fail_task(slot, Status(Code::kInternal, std::string("the answer could not be made: ") + error.what()));
  }
}

void Scheduler::prompt_evaluated(Slot& slot, bool last, std::span<const float> hidden) {
  Task& task = *slot.task;
  task.request->sink().progress(task.choice, {.total = task.facts.prompt_tokens,
                                              .cached = task.facts.cached_tokens,
                                              .done = slot.held.size(),
                                              .ms = task.facts.prompt_ms});
  if (!last) return;
  if (task.request->generation->only_hidden) task.request->sink().hidden(task.choice, hidden);
  prompt_done(slot);
}

void Scheduler::prompt_done(Slot& slot) {
  Task& task = *slot.task;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    task.request->prompt_done[task.prompt_index] = true;
  }
  task.decoding = true;
  task.first_token_ns = now_ns();
  const Generation& generation = *task.request->generation;
  if (generation.only_hidden) return end_task(slot, Finish::kStop);
  if (generation.most_tokens == 0) return end_task(slot, Finish::kLength);
  next_token(slot);
}

// One pass over all sequences that generate. False if there is none.
bool Scheduler::decode() {
  std::vector<Slot*> running;
  std::vector<Session*> sessions;
  std::vector<int32_t> tokens;
  for (const auto& slot : slots_) {
    if (slot->task == nullptr || !slot->task->decoding) continue;
    if (slot->session->position() == context_) {
      end_task(*slot, Finish::kLength);
      continue;
    }
    running.push_back(slot.get());
    sessions.push_back(slot->session.get());
    tokens.push_back(slot->task->pending);
  }
  if (running.empty()) return false;
  const EngineStats before = engine_.stats();
  const int64_t start = now_ns();
  Status status = engine_.evaluate_batch(sessions, tokens, Phase::kGeneration);
  if (status.code() == Code::kResources && forget_idle()) {
    status = engine_.evaluate_batch(sessions, tokens, Phase::kGeneration);
  }
  const double ms = ms_since(start);
  ++totals_.decode_passes;
  totals_.decoded_rows += running.size();
  totals_.answer_s += ms / 1e3;
  for (size_t i = 0; i < running.size(); ++i) {
    Slot& slot = *running[i];
    if (slot.session->position() > slot.held.size()) slot.held.push_back(tokens[i]);
    account(*slot.task, before, 1.0 / static_cast<double>(running.size()), ms, false);
    if (slot.task->request->failed) {
      release(slot);
    } else if (status.ok()) {
      guarded(slot, [&] { next_token(slot); });
    } else {
      fail_task(slot, status);
    }
  }
  return true;
}

// Gives back the KV pages of what no request uses. False if there was nothing.
bool Scheduler::forget_idle() {
  bool any = false;
  for (const auto& slot : slots_) {
    if (slot->task != nullptr || slot->held.empty()) continue;
    slot->session->reset();
    slot->held.clear();
    any = true;
  }
  return any;
}

void Scheduler::next_token(Slot& slot) {
  Task& task = *slot.task;
  const Generation& generation = *task.request->generation;
  const Result<int32_t> chosen = task.sampler->sample(slot.session->logits());
  if (!chosen.ok()) return fail_task(slot, chosen.status());
  const int32_t token = chosen.value();
  if (engine_.text().is_end_of_generation(token)) return end_task(slot, Finish::kStop);
  const Status accepted = task.sampler->accept(token);
  if (!accepted.ok()) return fail_task(slot, accepted);
  ++task.facts.tokens;
  ++totals_.answer_tokens;
  task.facts.answer_ms = ms_since(task.first_token_ns);
  if (generation.tells_probs) {
    task.untold_probs.push_back({task.sampler->probs().chosen, task.sampler->probs().top});
  }
  const std::string text = task.stop.push(task.stream->push(token));
  if (!text.empty()) {
    task.request->sink().text(task.choice, text, task.untold_probs, task.facts);
    task.untold_probs.clear();
  }
  if (task.stop.found()) return end_task(slot, Finish::kStop);
  const bool at_limit =
      generation.most_tokens >= 0 && task.facts.tokens >= static_cast<uint64_t>(generation.most_tokens);
  const bool out_of_time =
      generation.most_ms > 0 && task.facts.answer_ms > static_cast<double>(generation.most_ms);
  if (at_limit || out_of_time) return end_task(slot, Finish::kLength);
  task.pending = token;
}

void Scheduler::end_task(Slot& slot, Finish finish) {
  Task& task = *slot.task;
  Request& request = *task.request;
  ChoiceFacts& facts = task.facts;
  facts.finish = finish;
  facts.answer_ms = ms_since(task.first_token_ns);
  if (task.hits + task.misses > 0) facts.cache_hit_rate = task.hits / (task.hits + task.misses);
  std::string rest;
  if (!task.stop.found()) {
    rest = task.stop.push(task.stream->finish());
    rest += task.stop.finish();
  }
  facts.stop_text = task.stop.which();
  if (!rest.empty() || !task.untold_probs.empty()) {
    request.sink().text(task.choice, rest, task.untold_probs, facts);
  }
  request.sink().finished(task.choice, facts);
  totals_.most_tokens = std::max<uint64_t>(totals_.most_tokens, slot.held.size());
  if (--request.open_choices == 0) {
    ++totals_.requests;
    publish(true);
    request.sink().completed();
  }
  release(slot);
}

void Scheduler::fail_task(Slot& slot, const Status& status) {
  ++totals_.failed;
  // A session whose evaluation failed is of no use until it is empty again.
  if (status.code() != Code::kInvalidArgument) {
    slot.session->reset();
    slot.held.clear();
  }
  fail_request(*slot.task->request, api_error(status));
  release(slot);
}

void Scheduler::fail_request(Request& request, const ApiError& error) {
  if (std::exchange(request.failed, true)) return;
  request.sink().failed(error);
}

void Scheduler::release(Slot& slot) {
  slot.task.reset();
  slot.used_ns = now_ns();
}

// Adds a pass to what its sequences took.
void Scheduler::account(Task& task, const EngineStats& before, double share, double ms, bool prompt) {
  const EngineStats after = engine_.stats();
  const auto since = [&](auto field) { return static_cast<double>(after.*field - before.*field); };
  ChoiceFacts& facts = task.facts;
  facts.io_bytes += share * (since(&EngineStats::device_bytes) + since(&EngineStats::cached_bytes));
  facts.io_wait_ms += share * since(&EngineStats::io_wait_ns) / 1e6;
  if (prompt) {
    facts.prompt_ms += ms;
    totals_.prompt_s += ms / 1e3;
  }
  const double experts = since(&EngineStats::expert_hits) + since(&EngineStats::expert_misses);
  const double neurons = since(&EngineStats::neurons_resident) + since(&EngineStats::neurons_cached);
  const double absent = since(&EngineStats::neurons_read);
  const PlanSummary& plan = engine_.plan();
  if (experts > 0) {
    task.hits += share * since(&EngineStats::expert_hits);
    task.misses += share * since(&EngineStats::expert_misses);
  } else if (neurons + absent > 0) {
    task.hits += share * neurons;
    task.misses += share * absent;
  } else {
    task.hits += static_cast<double>(plan.resident_weight_bytes);
    task.misses += static_cast<double>(plan.streamed_bytes_per_token);
  }
}

void Scheduler::publish(bool now) {
  const int64_t time = now_ns();
  if (!now && time - published_ns_ < kPublishNs) return;
  published_ns_ = time;
  EngineView view;
  view.plan = engine_.plan();
  view.stats = engine_.stats();
  view.totals = totals_;
  for (const auto& slot : slots_) {
    SlotState state = {.busy = slot->task != nullptr, .held_tokens = slot->held.size()};
    if (slot->task != nullptr) {
      state.prompt_tokens = slot->task->facts.prompt_tokens;
      state.generated = slot->task->facts.tokens;
    }
    view.slots.push_back(state);
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  view.totals.refused = refused_;
  view_ = std::move(view);
}

EngineView Scheduler::view() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  EngineView view = view_;
  view.queued = queued_requests_;
  return view;
}

}  // namespace ganglion::server

// The scheduler's own parts: requests, tasks and slots. Included by scheduler*.cc only.
#pragma once

#include <memory>
#include <vector>

#include "server/scheduler.h"

namespace ganglion::server {

/// One request: all its choices, which fail together.
struct Scheduler::Request {
  std::unique_ptr<Generation> generation;
  size_t open_choices = 0;
  std::vector<bool> prompt_done;  ///< Per prompt: its first choice has evaluated it.
  bool waiting = true;            ///< No choice has a slot yet.
  bool failed = false;

  GenerationSink& sink() const { return *generation->sink; }
  bool cancelled() const { return generation->sink->cancelled(); }
};

/// One choice.
struct Scheduler::Task {
  std::shared_ptr<Request> request;
  size_t choice = 0;  ///< Over all prompts.
  size_t prompt_index = 0;
  std::unique_ptr<TokenFilter> filter;
  std::unique_ptr<Sampler> sampler;
  std::unique_ptr<TextStream> stream;
  StopText stop{std::vector<std::string>()};
  ChoiceFacts facts;
  bool decoding = false;
  int32_t pending = -1;  ///< Chosen, not evaluated yet.
  int64_t first_token_ns = 0;
  double hits = 0;
  double misses = 0;
  std::vector<TokenProbs> untold_probs;

  const std::vector<int32_t>& prompt() const { return request->generation->prompts[prompt_index]; }
  bool first_of_prompt() const { return choice % request->generation->choices == 0; }
};

struct Scheduler::Slot {
  std::unique_ptr<Session> session;
  std::vector<int32_t> held;  ///< What the session has evaluated.
  std::unique_ptr<Task> task;
  int64_t used_ns = 0;
  bool claimed = false;  ///< An action waits for it: no new task.
};

}  // namespace ganglion::server

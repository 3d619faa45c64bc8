#include "cli/drafting.h"

#include <cstdlib>

namespace ganglion::cli {

namespace {

// Tokens to draft per pass: a number, "off", or "auto" where every pass reads weights from disk.
constexpr size_t kAutoLookup = 4;
constexpr size_t kAutoModel = 8;
constexpr size_t kMostDraft = 16;

Result<size_t> draft_tokens(const DraftFlags& flags) {
  if (flags.count == "auto") return flags.model.empty() ? kAutoLookup : kAutoModel;
  if (flags.count == "off") return size_t{0};
  char* end = nullptr;
  const long count = std::strtol(flags.count.c_str(), &end, 10);
  if (end == flags.count.c_str() || *end != 0 || count < 0 || count > static_cast<long>(kMostDraft)) {
    return Status(Code::kInvalidArgument, "--draft '" + flags.count + "' is not auto, off or 0 to 16");
  }
  return static_cast<size_t>(count);
}

}  // namespace

void DraftFlags::add_to(CLI::App& app) {
  app.add_option("--draft", count, "Tokens to draft per pass, 0 to 16")
      ->capture_default_str()
      ->type_name("auto|off|N");
  app.add_option("--model-draft", model,
                 "Small model with the same vocabulary that drafts (default: prompt lookup; also -md)");
}

Status Drafting::prepare(const DraftFlags& flags, EngineOptions* engine) {
  flags_ = flags;
  const Result<size_t> count = draft_tokens(flags);
  if (!count.ok()) return count.status();
  count_ = count.value();
  engine->logit_rows = count_ + 1;
  if (flags.model.empty() || count_ == 0) return ok_status();
  EngineOptions small = *engine;
  small.model_path = flags.model;
  small.overrides.clear();
  small.logit_rows = 1;
  small.device = "none";
  small.hot_neurons.clear();
  if (small.memory == "min") small.memory = "75%";
  Result<std::unique_ptr<Engine>> opened = Engine::open(small);
  if (!opened.ok()) return Status(opened.status().code(), "the draft model: " + opened.status().message());
  const Result<std::unique_ptr<TextModel>> text = TextModel::open(engine->model_path, engine->overrides);
  if (!text.ok()) return text.status();
  if (!same_vocabulary(*text.value(), opened.value()->text()))
    return Status(Code::kInvalidArgument, "the draft model has another vocabulary than the model");
  const PlanSummary& plan = opened.value()->plan();
  if (plan.streams) {
    return Status(Code::kResources, "the draft model of " +
                                        bytes_text(static_cast<double>(plan.model_bytes)) +
                                        " does not fit a budget of " +
                                        bytes_text(static_cast<double>(plan.budget_bytes)) + " as a whole");
  }
  for (const MemoryItem& item : plan.items) {
    if (item.name != "process and kernel" && item.name != "reserve") engine->beside_bytes += item.bytes;
  }
  engine_ = opened.take();
  return ok_status();
}

Result<GenerationOptions> Drafting::load(const Engine& engine) {
  const bool worth_it = flags_.count != "auto" || engine.plan().streamed_bytes_per_token > 0;
  GenerationOptions options = {.most_drafted = worth_it ? count_ : 0, .always_draft = flags_.count != "auto"};
  if (engine_ == nullptr) return options;
  const Status loaded = engine_->load(nullptr, nullptr);
  if (!loaded.ok()) return loaded;
  Result<std::unique_ptr<Session>> session = engine_->new_session();
  if (!session.ok()) return session.status();
  session_ = session.take();
  options.drafter = session_.get();
  return options;
}

}  // namespace ganglion::cli

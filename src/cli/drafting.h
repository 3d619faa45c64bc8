// Drafts of `run`: by prompt lookup, or by a second, small model.
#pragma once

#include <memory>
#include <string>

#include "cli/command.h"
#include "ganglion/generation.h"

namespace ganglion::cli {

struct DraftFlags {
  std::string count = "auto";
  std::string model;

  void add_to(CLI::App& app);
};

/// The small model, if one is asked for. Opened before the large one, so that its memory is left out of what
/// the large one gets, and loaded after it.
class Drafting {
 public:
  /// Sets what the large model's engine must know. Errors: kInvalidArgument (a bad count, vocabularies that
  /// differ); those of Engine::open; kResources if the small model does not fit the budget as a whole.
  Status prepare(const DraftFlags& flags, EngineOptions* engine);
  /// `engine` is the large model's. Errors: those of loading.
  Result<GenerationOptions> load(const Engine& engine);

 private:
  DraftFlags flags_;
  size_t count_ = 0;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<Session> session_;
};

}  // namespace ganglion::cli

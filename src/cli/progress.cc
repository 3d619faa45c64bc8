#include "cli/progress.h"

#include <unistd.h>

#include <cstdio>

#include "cli/command.h"

namespace ganglion::cli {

Progress::Progress(std::string label)
    : label_(std::move(label)),
      terminal_(::isatty(STDERR_FILENO) != 0),
      start_(std::chrono::steady_clock::now()) {}

Progress::~Progress() {
  if (shown_) std::fprintf(stderr, "\r%*s\r", static_cast<int>(label_.size()) + 8, "");
}

void Progress::update(uint64_t done, uint64_t total) {
  const int percent = total == 0 ? 100 : static_cast<int>(done * 100 / total);
  if (!terminal_ || percent == last_percent_) return;
  last_percent_ = percent;
  if (std::chrono::steady_clock::now() - start_ < std::chrono::seconds(1)) return;
  shown_ = true;
  std::fprintf(stderr, "\r%s: %3d %%", label_.c_str(), percent);
}

bool show_stage(void* context, const char* stage, uint64_t done, uint64_t total) {
  auto& stages = *static_cast<Stages*>(context);
  if (stages.stage != stage) {
    stages.line.reset();
    stages.line = std::make_unique<Progress>(stage);
    stages.stage = stage;
  }
  stages.line->update(done, total);
  return !interrupted().load();
}

}  // namespace ganglion::cli

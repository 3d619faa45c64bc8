// Progress of what takes over a second: one line on stderr that overwrites itself, on a terminal only.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

namespace ganglion::cli {

class Progress {
 public:
  explicit Progress(std::string label);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void update(uint64_t done, uint64_t total);

 private:
  std::string label_;
  bool terminal_;
  bool shown_ = false;
  int last_percent_ = -1;
  std::chrono::steady_clock::time_point start_;
};

/// One line after the other for an operation of several stages.
struct Stages {
  std::unique_ptr<Progress> line;
  std::string stage;
};

/// The progress function of such operations; `stages` is a Stages. False once the user interrupts.
bool show_stage(void* stages, const char* stage, uint64_t done, uint64_t total);

}  // namespace ganglion::cli

// Progress of what takes over a second: one line on stderr that overwrites itself, on a terminal only.
#pragma once

#include <chrono>
#include <cstdint>
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

}  // namespace ganglion::cli

// Fields of a config.json. Remembers the first error, so that an architecture reads top to bottom and is
// checked once at its end.
#pragma once

#include <string>

#include "base/status.h"
#include "format/json.h"

namespace ganglion::convert {

class ConfigReader {
 public:
  ConfigReader(const format::Json& config, std::string path) : config_(config), path_(std::move(path)) {}

  const format::Json& operator[](std::string_view field) const { return config_[field]; }
  /// An integer in [1, limit].
  uint64_t count(std::string_view field, uint64_t limit);
  uint64_t count_or(std::string_view field, uint64_t fallback, uint64_t limit);
  double positive_or(const format::Json& value, std::string_view field, double fallback);
  /// Refuses what is neither absent nor `allowed`.
  void expect_text(std::string_view field, std::string_view allowed);
  void expect_flag(std::string_view field, bool allowed);

  void fail(base::Code code, const std::string& what);
  const base::Status& status() const { return status_; }

 private:
  const format::Json& config_;
  std::string path_;
  base::Status status_;
};

}  // namespace ganglion::convert

// Sampling options on the command line, under the names that other tools use.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "ganglion/sampling.h"
#include "ganglion/text.h"

namespace ganglion::cli {

struct SamplingFlags {
  SamplingOptions options;
  std::vector<std::string> biases;
  bool ignore_eos = false;

  void add_to(CLI::App& app);
  /// Adds what depends on the vocabulary. Errors: kInvalidArgument.
  Status finish(const TextModel& text);
};

}  // namespace ganglion::cli

// A completion script for bash, made from the commands and options themselves.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace ganglion::cli {

std::string bash_completion(const CLI::App& app);

}  // namespace ganglion::cli

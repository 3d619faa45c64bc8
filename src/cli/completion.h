// What is made from the commands and options themselves: a completion script for bash, and the man page.
#pragma once

#include <CLI/CLI.hpp>
#include <map>
#include <string>

namespace ganglion::cli {

/// Spellings of one dash and several letters, which CLI11 would read as several options: each means the long
/// option that it maps to.
const std::map<std::string, std::string>& single_dash_aliases();

/// What an option takes, without the checks that CLI11 adds to it.
std::string type_of(const CLI::Option& option);

/// Values of options are those of a type name like "auto|off|N": words that begin with a small letter.
std::string bash_completion(const CLI::App& app);

/// docs/ganglion.1 in roff: all commands with all their options. The same on every machine.
std::string man_page(const CLI::App& app);

}  // namespace ganglion::cli

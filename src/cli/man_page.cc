#include <set>

#include "cli/completion.h"

namespace ganglion::cli {

namespace {

// Text for roff: backslashes and dashes as they are, no line that begins with a control character.
std::string roff(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\') {
      out += "\\e";
    } else if (c == '-') {
      out += "\\-";
    } else if ((c == '.' || c == '\'') && (out.empty() || out.back() == '\n')) {
      out += std::string("\\&") + c;
    } else {
      out += c;
    }
  }
  return out;
}

std::string names_of(const CLI::Option& option) {
  std::string names;
  const auto add = [&](const std::string& name) { names += (names.empty() ? "" : ", ") + name; };
  for (const std::string& name : option.get_snames()) add("-" + name);
  for (const std::string& name : option.get_lnames()) {
    add("--" + name);
    for (const auto& [alias, long_name] : single_dash_aliases()) {
      if (long_name == "--" + name) add(alias);
    }
  }
  if (names.empty()) names = option.get_name(true);
  return names;
}

std::string describe(const CLI::Option& option) {
  std::string text = ".TP\n\\fB" + roff(names_of(option)) + "\\fR";
  if (option.get_type_size() > 0) text += " \\fI" + roff(type_of(option)) + "\\fR";
  text += "\n" + roff(option.get_description());
  if (!option.get_default_str().empty()) text += roff(" (default " + option.get_default_str() + ")");
  if (!option.get_envname().empty()) text += roff("; also " + option.get_envname() + " in the environment");
  return text + ".\n";
}

// Options of a command by group; those whose names are in `but` are left out.
std::string options_of(const CLI::App& command, const std::set<std::string>& but) {
  std::string text;
  for (const std::string& group : command.get_groups()) {
    if (group.empty()) continue;  // Hidden.
    std::string items;
    for (const CLI::Option* option : command.get_options()) {
      if (option->get_group() != group || but.count(option->get_name(false, true)) > 0) continue;
      if (option->get_name() != "--help") items += describe(*option);
    }
    if (!items.empty() && group != "Options" && group != "OPTIONS") text += ".PP\n" + roff(group) + ":\n";
    text += items;
  }
  return text;
}

}  // namespace

std::string man_page(const CLI::App& app) {
  // What `plan` has, every command that opens a model has.
  const CLI::App* plan =
      app.get_subcommands([](const CLI::App* c) { return c->get_name() == "plan"; }).front();
  std::set<std::string> shared;
  for (const CLI::Option* option : plan->get_options()) {
    if (option->get_name() != "--json") shared.insert(option->get_name(false, true));
  }
  std::string text =
      ".\\\" Made by ganglion --man-page; a test compares.\n"
      ".TH GANGLION 1 \"2026\" \"ganglion 0.1\" \"User Commands\"\n"
      ".SH NAME\n"
      "ganglion \\- run language models larger than memory\n"
      ".SH SYNOPSIS\n"
      ".B ganglion\n.I COMMAND\n.RI [ OPTIONS ]\n"
      ".SH DESCRIPTION\n"
      "Ganglion runs a language model from a GGUF file within a memory budget. What fits stays in memory, "
      "the "
      "rest is read from\ndisk while it computes. The text is the same as with all memory.\n"
      ".SH MODEL OPTIONS\n"
      "Of all commands that run or plan a model.\n";
  text += options_of(*plan, {"--json"});
  text += ".SH COMMANDS\n";
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    text += ".SS " + command->get_name() + "\n" + roff(command->get_description()) + ".\n";
    const bool runs = command->get_option_no_throw("--mem") != nullptr;
    if (runs) text += "Takes the model options, and:\n";
    text += options_of(*command, runs ? shared : std::set<std::string>());
  }
  text +=
      ".SH EXIT STATUS\n"
      "0 ok, 1 runtime error, 2 usage, 3 model file, 4 resources, 130 interrupted.\n"
      ".SH SIGNALS\n"
      "SIGINT stops an answer, a second one the program. SIGUSR1 lowers the memory budget by a quarter, "
      "SIGUSR2 "
      "raises it by a\nthird, at most to what it was.\n"
      ".SH EXAMPLES\n"
      ".nf\n"
      "ganglion run \\-m model.gguf \\-\\-mem 4G \\-p \"Why is the sky blue?\"\n"
      "ganglion plan \\-m model\\-00001\\-of\\-00003.gguf \\-\\-mem 75%\n"
      "ganglion \\-\\-completion\\-bash > /etc/bash_completion.d/ganglion\n"
      ".fi\n";
  return text;
}

}  // namespace ganglion::cli

#include "cli/completion.h"

#include <algorithm>
#include <cctype>

namespace ganglion::cli {

namespace {

bool has_long_name(const CLI::App& app, const std::string& name) {
  const CLI::Option* option = app.get_option_no_throw(name);
  return option != nullptr && !option->get_group().empty();
}

std::string option_words(const CLI::App& app) {
  std::string words;
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_group().empty()) continue;  // Hidden.
    for (const std::string& name : option->get_lnames()) words += " --" + name;
    for (const std::string& name : option->get_snames()) words += " -" + name;
  }
  for (const auto& [alias, name] : single_dash_aliases()) {
    if (has_long_name(app, name)) words += " " + alias;
  }
  return words;
}

// Of "auto|off|N" those that are words to type, each after a space.
std::string values_of(const std::string& type_name) {
  std::string values;
  if (type_name.find('|') == std::string::npos) return values;
  for (size_t at = 0; at <= type_name.size();) {
    const size_t end = std::min(type_name.find('|', at), type_name.size());
    const std::string value = type_name.substr(at, end - at);
    if (!value.empty() && std::islower(static_cast<unsigned char>(value[0])) != 0) values += " " + value;
    at = end + 1;
  }
  return values;
}

// "    run:--kv-type|run:-ctk) values=..." for each option of a command that has values.
std::string value_cases(const CLI::App& command) {
  std::string cases;
  for (const CLI::Option* option : command.get_options()) {
    const std::string values = values_of(type_of(*option));
    if (values.empty()) continue;
    std::string patterns;
    const auto add = [&](const std::string& name) {
      patterns += (patterns.empty() ? "" : "|") + command.get_name() + ":" + name;
    };
    for (const std::string& name : option->get_lnames()) {
      add("--" + name);
      for (const auto& [alias, long_name] : single_dash_aliases()) {
        if (long_name == "--" + name) add(alias);
      }
    }
    for (const std::string& name : option->get_snames()) add("-" + name);
    cases += "    " + patterns + ") values=\"" + values.substr(1) + "\" ;;\n";
  }
  return cases;
}

}  // namespace

const std::map<std::string, std::string>& single_dash_aliases() {
  static const std::map<std::string, std::string> kAliases = {
      {"-md", "--model-draft"},    {"-np", "--parallel"}, {"-st", "--single-turn"},
      {"-sys", "--system-prompt"}, {"-no-cnv", "--raw"},  {"-ctk", "--kv-type"},
      {"-ctv", "--kv-type"},       {"-ub", "--chunk"},    {"-mem", "--mem"},
      {"-ngl", "--n-gpu-layers"},  {"-hf", "--hf-repo"},
  };
  return kAliases;
}

std::string type_of(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  return type.substr(0, type.find(':'));
}

std::string bash_completion(const CLI::App& app) {
  std::string commands;
  std::string cases;
  std::string values;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    commands += " " + command->get_name();
    cases += "    " + command->get_name() + ") words=\"" + option_words(*command) + "\" ;;\n";
    values += value_cases(*command);
  }
  return "# bash completion for ganglion: source this file, or install it as completions/ganglion\n"
         "_ganglion() {\n"
         "  local current=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} values=\n"
         "  local words=\"" +
         commands + option_words(app) +
         "\"\n"
         "  case ${COMP_WORDS[1]} in\n" +
         cases +
         "  esac\n"
         "  case ${COMP_WORDS[1]}:$before in\n" +
         values +
         "  esac\n"
         "  if [[ -n $values ]]; then\n"
         "    COMPREPLY=($(compgen -W \"$values\" -- \"$current\"))\n"
         "  elif [[ $current == -* || $COMP_CWORD == 1 ]]; then\n"
         "    COMPREPLY=($(compgen -W \"$words\" -- \"$current\"))\n"
         "  else\n"
         "    COMPREPLY=($(compgen -f -- \"$current\"))\n"
         "  fi\n"
         "}\n"
         "complete -o filenames -F _ganglion ganglion\n";
}

}  // namespace ganglion::cli

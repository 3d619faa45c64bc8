#include "cli/completion.h"

namespace ganglion::cli {

namespace {

std::string option_words(const CLI::App& app) {
  std::string words;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) words += " --" + name;
    for (const std::string& name : option->get_snames()) words += " -" + name;
  }
  return words;
}

}  // namespace

std::string bash_completion(const CLI::App& app) {
  std::string commands;
  std::string cases;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    commands += " " + command->get_name();
    cases += "    " + command->get_name() + ") words=\"" + option_words(*command) + "\" ;;\n";
  }
  return "# bash completion for ganglion: source this file, or install it as completions/ganglion\n"
         "_ganglion() {\n"
         "  local current=${COMP_WORDS[COMP_CWORD]} words=\"" +
         commands + option_words(app) +
         "\"\n"
         "  case ${COMP_WORDS[1]} in\n" +
         cases +
         "  esac\n"
         "  if [[ $current == -* || $COMP_CWORD == 1 ]]; then\n"
         "    COMPREPLY=($(compgen -W \"$words\" -- \"$current\"))\n"
         "  else\n"
         "    COMPREPLY=($(compgen -f -- \"$current\"))\n"
         "  fi\n"
         "}\n"
         "complete -o filenames -F _ganglion ganglion\n";
}

}  // namespace ganglion::cli

// The program: parses the command line and runs one command.
#include <csignal>
#include <cstdio>
#include <exception>
#include <system_error>

#include "cli/command.h"
#include "cli/completion.h"
#include "ganglion/version.h"

namespace ganglion::cli {
namespace {

std::vector<std::string> arguments(int argc, char** argv) {
  std::vector<std::string> args;
  for (int i = argc - 1; i > 0; --i) {  // CLI11 takes them in reverse.
    const auto alias = single_dash_aliases().find(argv[i]);
    args.push_back(alias == single_dash_aliases().end() ? argv[i] : alias->second);
  }
  return args;
}

int main_with(int argc, char** argv) {
  CLI::App app("Ganglion runs language models on machines whose memory is smaller than the model.",
               "ganglion");
  app.require_subcommand(0, 1);
  app.set_version_flag("--version", build_facts());
  bool completion = false;
  app.add_flag("--completion-bash", completion, "Print a completion script for bash");
  bool man = false;
  app.add_flag("--man-page", man, "Print the manual page (roff)");
  app.footer(
      "'ganglion COMMAND --help' explains a command. Exit codes: 0 ok, 1 runtime error, 2 usage, 3 model "
      "file, 4 resources, 130 interrupted.");
  CommandBody body;
  for (auto* add : {register_run, register_serve, register_bench, register_perplexity, register_plan,
                    register_calibrate, register_pack, register_convert, register_doctor, register_inspect,
                    register_verify, register_tokenize, register_detokenize, register_template,
                    register_logits, register_pull, register_list}) {
    add(app, &body);
  }
  try {
    app.parse(arguments(argc, argv));
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
    const std::string named = argc > 1 ? argv[1] : "";
    const bool unknown =
        !named.empty() && named[0] != '-' &&
        app.get_subcommands([&](const CLI::App* c) { return c->get_name() == named; }).empty();
    std::fprintf(stderr, "ganglion: %s - see ganglion --help\n",
                 unknown ? ("unknown command '" + named + "'").c_str() : error.what());
    return exit_code(Code::kInvalidArgument);
  }
  if (completion || man) {
    const Status written = write_out(completion ? bash_completion(app) : man_page(app));
    return written.ok() ? 0 : fail(written);
  }
  if (!body) {
    std::fprintf(stderr, "%s", app.help().c_str());
    return exit_code(Code::kInvalidArgument);
  }
  ::signal(SIGPIPE, SIG_IGN);
  ::signal(SIGXFSZ, SIG_IGN);  // A file that may not grow is an error of writing.
  return body();
}

}  // namespace
}  // namespace ganglion::cli

int main(int argc, char** argv) {
  try {
    return ganglion::cli::main_with(argc, argv);
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "ganglion: out of memory - the system refused an allocation\n");
    return ganglion::exit_code(ganglion::Code::kResources);
  } catch (const std::system_error& error) {
    std::fprintf(stderr, "ganglion: the system refused a thread or a file (%s) - use fewer threads (-t)\n",
                 error.what());
    return ganglion::exit_code(ganglion::Code::kResources);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "ganglion: %s\n", error.what());
    return ganglion::exit_code(ganglion::Code::kInternal);
  }
}

// serve: answers HTTP clients until it is stopped.
#include <algorithm>
#include <cstdio>
#include <utility>

#include "cli/command.h"
#include "cli/sampling_flags.h"
#include "ganglion/server.h"

namespace ganglion::cli {

namespace {

struct ServeFlags {
  ModelFlags model;
  SamplingFlags sampling;
  ServerOptions server;
  std::string api_key_file;
  std::string template_file;
};

// The key's file may end with a line end.
Status read_api_key(ServeFlags& flags) {
  if (flags.api_key_file.empty()) return ok_status();
  Result<std::string> key = read_small_file(flags.api_key_file);
  if (!key.ok()) return key.status();
  flags.server.api_key = key.value().substr(0, key.value().find_first_of("\r\n"));
  if (!flags.server.api_key.empty()) return ok_status();
  return Status(Code::kInvalidArgument, "'" + flags.api_key_file + "' holds no key");
}

int run_serve(ServeFlags& flags) {
  Status status = read_api_key(flags);
  if (!status.ok()) return fail(status);
  if (!flags.template_file.empty()) {
    Result<std::string> source = read_small_file(flags.template_file);
    if (!source.ok()) return fail(source.status());
    flags.server.chat_template = source.take();
  }
  flags.model.engine.sequences = flags.server.parallel;
  install_signal_handlers();
  Result<std::unique_ptr<Server>> server = Server::start(flags.server);
  if (!server.ok()) return fail(server.status());
  Result<std::unique_ptr<Engine>> opened = open_engine(flags.model);
  if (!opened.ok()) return fail(opened.status());
  Engine& engine = *opened.value();
  // Biases by token need the vocabulary, which is known only now.
  status = flags.sampling.finish(engine.text());
  if (!status.ok()) return fail(status);
  const std::string host =
      flags.server.host.find(':') == std::string::npos ? flags.server.host : "[" + flags.server.host + "]";
  if (flags.server.host != "127.0.0.1" && flags.server.host != "localhost" && flags.server.api_key.empty())
    std::fprintf(stderr,
                 "note: anyone who can reach this address may use it - ask for a key with --api-key\n");
  bool told = false;
  const auto between_passes = [&] {
    // Not before requests are served.
    if (!std::exchange(told, true))
      std::fprintf(stderr, "listening on http://%s:%u\n", host.c_str(), server.value()->port());
    follow_budget_signals(engine);
  };
  status = server.value()->run(engine, flags.sampling.options, interrupted(), between_passes);
  server.value().reset();
  return status.ok() ? 0 : fail(status);
}

}  // namespace

void register_serve(CLI::App& app, CommandBody* body) {
  CLI::App* command =
      app.add_subcommand("serve", "Answer HTTP clients of OpenAI's and Anthropic's interfaces");
  auto flags = std::make_shared<ServeFlags>();
  flags->model.add_to(*command);
  ServerOptions& o = flags->server;
  command->add_option("--host", o.host, "Address to listen on")->capture_default_str();
  command->add_option("--port", o.port, "Port to listen on (0: any free one)")->capture_default_str();
  bounded(command->add_option("--parallel", o.parallel, "Answers generated at once (also -np)"), 256)
      ->capture_default_str();
  bounded(command->add_option("--queue", o.most_queued, "Requests that may wait; more are refused"), 1 << 20)
      ->capture_default_str();
  bounded(command->add_option("--max-connections", o.most_connections, "Connections at once"), 1 << 16)
      ->capture_default_str();
  command->add_option("--api-key", o.api_key, "Key that clients must send")->envname("GANGLION_API_KEY");
  command->add_option("--api-key-file", flags->api_key_file, "File that holds the key");
  command->add_option("--alias", o.alias, "Name of the model to clients (default: the file's)");
  command->add_option("--cors-origin", o.cors_origin,
                      "Web pages that may call: * or one origin (default: pages of this machine)");
  command->add_option("--chat-template-file", flags->template_file, "Jinja template instead of the model's");
  command->add_option("--slot-save-path", o.slot_save_path,
                      "Folder in which clients may save slots' keys and values");
  command->add_option("--slot-save-limit", o.slot_save_limit, "Most that all files in it may take")
      ->capture_default_str();
  bounded(command->add_option("--grace", o.stop_grace_s, "Seconds that answers may go on after SIGTERM"),
          3600)
      ->capture_default_str();
  // Habits from llama-server, where ours is the only behaviour.
  command
      ->add_flag_callback(
          "--jinja,--metrics,--slots,--props,--cont-batching", [] {}, "Accepted; always on")
      ->group("");
  flags->sampling.add_to(*command);
  command->callback([flags, body] { *body = [flags] { return run_serve(*flags); }; });
}

}  // namespace ganglion::cli

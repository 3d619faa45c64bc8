// HTTP server over one engine: what clients of OpenAI's and Anthropic's interfaces and of llama-server speak.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "ganglion/engine.h"
#include "ganglion/error.h"
#include "ganglion/sampling.h"

namespace ganglion {

struct ServerOptions {
  std::string host = "127.0.0.1";  ///< An address or "localhost".
  uint16_t port = 8080;            ///< 0: any free one.
  std::string api_key;             ///< Empty: none is asked for.
  std::string alias;               ///< Name of the model to clients; empty: the file's name.
  std::string chat_template;       ///< Jinja source; empty: the model's own.
  std::string cors_origin;   ///< Web pages that may call: "*" or one origin; empty: those of this machine.
  size_t parallel = 1;       ///< Sequences that are generated at once.
  size_t most_queued = 128;  ///< Requests that wait for a slot; more are refused (429).
  size_t most_connections = 256;
  size_t most_body_bytes = size_t{4} << 20;    ///< Of one request.
  size_t buffer_bytes = size_t{8} << 20;       ///< All requests and unsent answers together.
  size_t most_unsent_bytes = size_t{1} << 20;  ///< A client that leaves more unread is cut off.
  std::string slot_save_path;                  ///< Folder of saved slots; empty: slots are not saved.
  std::string slot_save_limit = "8G";  ///< Most that all files in that folder may take: "500M", "20GB".
  int keep_alive_s = 15;               ///< A stream that is silent so long gets an empty event.
  int read_timeout_s = 60;             ///< For a whole head, and again for a whole body.
  int write_timeout_s = 30;            ///< For a client that reads nothing.
  int stop_grace_s = 5;                ///< How long running answers may go on after a stop.
};

/// One network thread, one that reads requests, and the caller's thread for the engine.
class Server {
 public:
  /// Listens and answers 503 "Loading model" until run(). Call it before Engine::open: what the server will
  /// use is held meanwhile, so that the plan counts it as the process's own.
  /// Errors: kInvalidArgument (host or an option), kIo (the port is taken).
  static Result<std::unique_ptr<Server>> start(const ServerOptions& options);
  virtual ~Server() = default;

  virtual uint16_t port() const = 0;

  /// Serves on this thread until `stop`, then ends what runs within the grace time. `sampling`: what requests
  /// do not say. `between_passes` (or empty) is called often, on this thread. Requires: a loaded engine,
  /// opened for as many sequences as `parallel`; call once. Errors: kResources (no memory for the sessions).
  virtual Status run(Engine& engine, const SamplingOptions& sampling, const std::atomic<bool>& stop,
                     const std::function<void()>& between_passes) = 0;
};

}  // namespace ganglion

// The network side: one thread that runs an event loop, bounded connections and buffers, deadlines. Knows
// HTTP but no interface: a handler decides what a request means. Used by service.cc.
#pragma once

#include <atomic>
#include <memory>
#include <optional>

#include "ganglion/error.h"
#include "ganglion/server.h"
#include "server/http.h"

namespace ganglion::server {

/// Called on the network thread; must not block.
class HttpHandler {
 public:
  virtual ~HttpHandler() = default;
  /// Judges a head before the body is read: unknown paths, keys, origins.
  virtual std::optional<ApiError> check(const HttpHead& head) = 0;
  virtual void handle(HttpRequest request, std::shared_ptr<Reply> reply) = 0;
  /// An error in the form that clients of this path read.
  virtual Json error_body(const HttpHead& head, const ApiError& error) = 0;
  /// Whether web pages of this origin may call.
  virtual bool allows_origin(const HttpHead& head) = 0;
};

struct HttpCounts {
  size_t connections = 0;
  size_t buffer_bytes = 0;
};

/// A connection's way: reading a head -> (body) -> waiting for the answer, with a read pending that notices
/// when the client leaves -> writing -> reading the next head, or lingering until the client has closed.
class HttpServer {
 public:
  /// Listens and starts the thread. `handler` must outlive this. Errors: kInvalidArgument (host), kIo (port).
  static Result<std::unique_ptr<HttpServer>> listen(const ServerOptions& options, HttpHandler& handler);
  virtual ~HttpServer() = default;

  virtual uint16_t port() const = 0;
  /// Once `stop` is set no connection is accepted; after the grace time all replies are cancelled.
  virtual void follow(const std::atomic<bool>& stop) = 0;
  /// Waits until all answers are sent, 2 s at most, and ends the thread.
  virtual void finish() = 0;
  virtual HttpCounts counts() const = 0;
};

}  // namespace ganglion::server

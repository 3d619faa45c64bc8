// What passes between the network and the rest: a request, and the handle to answer it.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "server/api_error.h"

namespace ganglion::server {

/// What is known before the body is read.
struct HttpHead {
  std::string method;
  std::string path;   ///< Without the query.
  std::string query;  ///< Without '?'.
  std::string host;
  std::string origin;
  std::string authorization;
  std::string api_key;  ///< x-api-key.
};

struct HttpRequest {
  HttpHead head;
  std::string body;
};

/// Answers one request. Thread-safe. Either respond() once, or begin_stream(), send() as often as needed and
/// end_stream(). A reply that is let go unanswered becomes a 500.
class Reply {
 public:
  virtual ~Reply() = default;

  virtual void respond(int http, const char* content_type, std::string body) = 0;
  /// Server-sent events from now on. `keep_alive` is sent whenever the stream has been silent for long.
  virtual void begin_stream(std::string keep_alive) = 0;
  virtual void send(std::string event) = 0;
  virtual void end_stream() = 0;

  /// Set when nobody waits for the answer any more; may be set by anyone who wants the work to stop.
  std::atomic<bool>& cancelled() { return cancelled_; }

  void respond_json(int http, const Json& body) { respond(http, "application/json", to_text(body)); }

 private:
  std::atomic<bool> cancelled_{false};
};

}  // namespace ganglion::server

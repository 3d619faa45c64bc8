// One client's connection. Everything here runs on the network thread.
#pragma once

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>

#include "server/http.h"
#include "server/http_server.h"

namespace ganglion::server {

namespace asio = boost::asio;
namespace http = boost::beast::http;

class Connection;

/// What connections share.
struct NetworkState {
  NetworkState(const ServerOptions& for_options, HttpHandler& for_handler)
      : options(for_options), handler(for_handler) {}

  const ServerOptions options;
  HttpHandler& handler;
  std::unordered_set<Connection*> connections;  ///< Network thread only.
  std::atomic<size_t> connection_count{0};
  std::atomic<size_t> used_bytes{0};  ///< Of requests and unsent answers.
  bool stopping = false;              ///< Network thread only.
  asio::io_context context{1};        ///< Last: connections in its handlers use the rest.
};

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(NetworkState& state, asio::ip::tcp::socket socket);
  ~Connection();

  void start() { read_head(); }

  // The answer, as Reply tells it.
  void respond(int http, const char* content_type, const std::string& body);
  void begin_stream(std::string keep_alive);
  void send_event(const std::string& event);
  void end_stream();

  /// The server stops: idle connections are closed, others after their answer.
  void stop();
  /// Wants the answer to end soon.
  void cancel_reply();
  void close();

 private:
  enum class Wait { kNothing, kClient, kKeepAlive };

  void read_head();
  void head_read(const boost::system::error_code& error);
  void read_body();
  void body_read(const boost::system::error_code& error);
  bool admit_body();
  void handle();
  void refuse(const ApiError& error);
  void answer_preflight();
  void watch();
  void watched(const boost::system::error_code& error, size_t count);
  void discard();
  void append(std::string_view text);
  void write();
  void written(const boost::system::error_code& error);
  void answer_complete();
  void linger();
  void wait(Wait what, int seconds);
  void waited();
  void abandon();
  std::string head_text(int http, const char* content_type) const;

  NetworkState& state_;
  asio::ip::tcp::socket socket_;
  asio::steady_timer timer_;
  boost::beast::flat_buffer buffer_;
  std::optional<http::request_parser<http::string_body>> parser_;
  HttpHead head_;
  std::weak_ptr<Reply> reply_;
  std::string pending_;  ///< To be sent after...
  std::string sending_;  ///< ...what is being sent.
  std::string keep_alive_event_;
  size_t reserved_bytes_ = 0;   ///< For the request's body.
  size_t discarded_bytes_ = 0;  ///< While lingering.
  uint64_t wait_count_ = 0;
  Wait waiting_for_ = Wait::kNothing;
  unsigned version_ = 11;
  bool keeps_alive_ = true;
  bool allowed_origin_ = false;
  bool reading_ = false;   ///< A head or body.
  bool watching_ = false;  ///< A read is pending that notices the client leaving.
  bool writing_ = false;
  bool streaming_ = false;
  bool complete_ = false;   ///< The whole answer is in pending_ or sent.
  bool lingering_ = false;  ///< Only waits for the client to close.
  bool closed_ = false;
};

/// Hands the answer over to the connection's thread.
class ConnectionReply final : public Reply {
 public:
  ConnectionReply(NetworkState& state, std::shared_ptr<Connection> connection)
      : state_(state), connection_(std::move(connection)) {}
  ~ConnectionReply() override;

  void respond(int http, const char* content_type, std::string body) override;
  void begin_stream(std::string keep_alive) override;
  void send(std::string event) override;
  void end_stream() override;

 private:
  NetworkState& state_;
  std::shared_ptr<Connection> connection_;
  std::atomic<bool> answered_{false};
  std::atomic<bool> open_stream_{false};
};

}  // namespace ganglion::server

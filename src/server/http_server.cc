#include "server/http_server.h"

#include <boost/asio/post.hpp>
#include <boost/asio/write.hpp>
#include <chrono>
#include <thread>
#include <utility>
#include <vector>

#include "server/connection.h"

namespace ganglion::server {

namespace {

using asio::ip::tcp;
using boost::system::error_code;

constexpr auto kTick = std::chrono::milliseconds(100);
constexpr int kFinishTicks = 20;

class HttpServerImpl final : public HttpServer {
 public:
  HttpServerImpl(const ServerOptions& options, HttpHandler& handler)
      : state_(options, handler), acceptor_(state_.context), tick_(state_.context) {}

  ~HttpServerImpl() override {
    state_.context.stop();
    if (thread_.joinable()) thread_.join();
    // Connections that only handlers hold go with them, while the state is still there.
    for (Connection* connection : state_.connections) connection->cancel_reply();
  }

  Status listen() {
    error_code error;
    const std::string host = state_.options.host == "localhost" ? "127.0.0.1" : state_.options.host;
    const auto address = asio::ip::make_address(host, error);
    if (error) {
      return Status(Code::kInvalidArgument, "--host '" + host + "' is no IP address, nor localhost");
    }
    const tcp::endpoint endpoint(address, state_.options.port);
    acceptor_.open(endpoint.protocol(), error);
    if (!error) acceptor_.set_option(tcp::acceptor::reuse_address(true), error);
    if (!error) acceptor_.bind(endpoint, error);
    if (!error) acceptor_.listen(asio::socket_base::max_listen_connections, error);
    if (error) {
      return Status(Code::kIo, "cannot listen on " + host + ":" + std::to_string(state_.options.port) + ": " +
                                   error.message() + " - choose another with --port");
    }
    port_ = acceptor_.local_endpoint().port();
    accept();
    tick();
    thread_ = std::thread([this] { loop(); });
    return ok_status();
  }

  uint16_t port() const override { return port_; }

  void follow(const std::atomic<bool>& stop) override {
    asio::post(state_.context, [this, &stop] { stop_ = &stop; });
  }

  void finish() override {
    asio::post(state_.context, [this] {
      begin_stop();
      finish_ticks_ = kFinishTicks;
    });
    thread_.join();
  }

  HttpCounts counts() const override { return {state_.connection_count, state_.used_bytes}; }

 private:
  // A failure in one connection's handler ends that handler alone.
  void loop() {
    for (;;) {
      try {
        state_.context.run();
        return;
      } catch (const std::exception&) {
      }
    }
  }

  void accept() {
    acceptor_.async_accept([this](error_code error, tcp::socket socket) {
      if (!acceptor_.is_open()) return;
      if (error) return accept_later();
      accepted(std::move(socket));
      accept();
    });
  }

  // Out of file descriptors, most likely.
  void accept_later() {
    retry_.expires_after(kTick);
    retry_.async_wait([this](error_code error) {
      if (!error && acceptor_.is_open()) accept();
    });
  }

  void accepted(tcp::socket socket) {
    error_code ignored;
    if (state_.connection_count >= state_.options.most_connections) {
      static constexpr std::string_view kFull =
          "HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nRetry-After: 1\r\nContent-Length: "
          "0\r\n\r\n";
      socket.non_blocking(true, ignored);
      socket.write_some(asio::buffer(kFull.data(), kFull.size()), ignored);
      return;
    }
    socket.set_option(tcp::no_delay(true), ignored);
    // Peers that vanished without a word are found by the system.
    socket.set_option(asio::socket_base::keep_alive(true), ignored);
    std::make_shared<Connection>(state_, std::move(socket))->start();
  }

  void begin_stop() {
    if (std::exchange(state_.stopping, true)) return;
    error_code ignored;
    acceptor_.close(ignored);
    for (Connection* connection :
         std::vector<Connection*>(state_.connections.begin(), state_.connections.end()))
      connection->stop();
  }

  void tick() {
    tick_.expires_after(kTick);
    tick_.async_wait([this](error_code error) {
      if (error) return;
      follow_stop();
      if (finish_ticks_ > 0) {
        begin_stop();
        if (--finish_ticks_ == 0 || state_.connections.empty()) return state_.context.stop();
      }
      tick();
    });
  }

  void follow_stop() {
    if (stop_ == nullptr || !stop_->load()) return;
    begin_stop();
    const auto now = std::chrono::steady_clock::now();
    if (stop_at_ == std::chrono::steady_clock::time_point()) {
      stop_at_ = now + std::chrono::seconds(state_.options.stop_grace_s);
    }
    if (now < stop_at_) return;
    for (Connection* connection : state_.connections) connection->cancel_reply();
  }

  NetworkState state_;
  tcp::acceptor acceptor_;
  asio::steady_timer tick_;
  asio::steady_timer retry_{state_.context};
  std::thread thread_;
  const std::atomic<bool>* stop_ = nullptr;
  std::chrono::steady_clock::time_point stop_at_;
  int finish_ticks_ = 0;
  uint16_t port_ = 0;
};

}  // namespace

Result<std::unique_ptr<HttpServer>> HttpServer::listen(const ServerOptions& options, HttpHandler& handler) {
  auto server = std::make_unique<HttpServerImpl>(options, handler);
  const Status status = server->listen();
  if (!status.ok()) return status;
  return std::unique_ptr<HttpServer>(std::move(server));
}

}  // namespace ganglion::server

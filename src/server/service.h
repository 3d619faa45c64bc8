// Ties network, endpoints and scheduler: which path is what, who may call, what is answered at once.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

#include "ganglion/server.h"
#include "server/endpoint.h"
#include "server/http_server.h"

namespace ganglion::server {

/// One thread that reads requests (JSON, templates, tokens, grammars), so that the network thread never
/// waits.
class RequestThread {
 public:
  RequestThread();
  ~RequestThread() { stop(); }
  /// After stop() the work is let go.
  void post(std::function<void()> work);
  /// Finishes what was posted before.
  void stop();

 private:
  void loop();

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> work_;
  bool stopping_ = false;
  std::thread thread_;
};

class Service final : public HttpHandler {
 public:
  explicit Service(const ServerOptions& options) : options_(options) {}

  /// From now on requests are served. Both must outlive stop_serving() and the network thread.
  void serve(const ServedModel* model, Scheduler* scheduler);
  /// Requests are refused from now on; waits for those being read.
  void stop_serving();
  void set_network(const HttpServer* network) { network_ = network; }

  std::optional<ApiError> check(const HttpHead& head) override;
  void handle(HttpRequest request, std::shared_ptr<Reply> reply) override;
  Json error_body(const HttpHead& head, const ApiError& error) override;
  bool allows_origin(const HttpHead& head) override;

 private:
  void answer(const HttpRequest& request, const std::shared_ptr<Reply>& reply);
  void answer_status(const HttpRequest& request, Reply& reply);
  bool has_key(const HttpHead& head) const;
  bool is_own_host(const std::string& host) const;

  const ServerOptions options_;
  std::atomic<const ServedModel*> model_{nullptr};
  std::atomic<Scheduler*> scheduler_{nullptr};
  std::atomic<const HttpServer*> network_{nullptr};
  std::atomic<bool> serving_{false};
  RequestThread requests_;
};

/// Answers of endpoints that only look.
Json models_json(const ServedModel& model);
Json props_json(const ServedModel& model, const EngineView& view);
Json slots_json(const ServedModel& model, const EngineView& view);
std::string metrics_text(const EngineView& view, const HttpCounts& network);

}  // namespace ganglion::server

#include "server/service.h"

#include <algorithm>
#include <array>

#include "server/web_ui.h"

namespace ganglion::server {

namespace {

struct Route {
  std::string_view path;
  Endpoint endpoint;  ///< Null: answered by answer_status.
  bool is_public = false;
};

constexpr std::array kRoutes = {
    Route{"/", nullptr, true},
    Route{"/health", nullptr, true},
    Route{"/v1/health", nullptr, true},
    Route{"/models", nullptr},
    Route{"/v1/models", nullptr},
    Route{"/props", nullptr},
    Route{"/slots", nullptr},
    Route{"/metrics", nullptr},
    Route{"/completion", native_completion},
    Route{"/completions", native_completion},
    Route{"/v1/completions", completions},
    Route{"/chat/completions", chat_completions},
    Route{"/v1/chat/completions", chat_completions},
    Route{"/embeddings", embeddings},
    Route{"/embedding", embeddings},
    Route{"/v1/embeddings", embeddings},
    Route{"/tokenize", tokenize},
    Route{"/detokenize", detokenize},
    Route{"/apply-template", apply_template},
    Route{"/v1/messages", messages},
    Route{"/v1/messages/count_tokens", count_message_tokens},
    Route{"/v1/responses", responses},
};

const Route* find_route(const std::string& path) {
  const auto* found =
      std::find_if(kRoutes.begin(), kRoutes.end(), [&](const Route& route) { return route.path == path; });
  if (found != kRoutes.end()) return found;
  static constexpr std::array kWithName = {Route{"/v1/models/", nullptr}, Route{"/slots/", slot_action}};
  const auto* named = std::find_if(kWithName.begin(), kWithName.end(),
                                   [&](const Route& route) { return path.rfind(route.path, 0) == 0; });
  return named == kWithName.end() ? nullptr : named;
}

ApiError refusal(int http, const char* type, std::string message) {
  ApiError error;
  error.http = http;
  error.type = type;
  error.message = std::move(message);
  return error;
}

// The host of "http://name:port" or "name:port", without the port.
std::string host_name(std::string text) {
  const size_t scheme = text.find("://");
  if (scheme != std::string::npos) text.erase(0, scheme + 3);
  if (!text.empty() && text[0] == '[') return text.substr(0, text.find(']') + 1);
  return text.substr(0, text.find(':'));
}

bool is_loopback_name(const std::string& name) {
  return name == "localhost" || name == "127.0.0.1" || name == "[::1]" || name.rfind("127.", 0) == 0 ||
         (name.size() > 10 && name.compare(name.size() - 10, 10, ".localhost") == 0);
}

// Takes the same time wherever two texts of one length differ.
bool same_text(std::string_view a, std::string_view b) {
  unsigned char difference = a.size() == b.size() ? 0 : 1;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i)
    difference = static_cast<unsigned char>(difference | (a[i] ^ b[i]));
  return difference == 0;
}

}  // namespace

RequestThread::RequestThread() : thread_([this] { loop(); }) {}

void RequestThread::stop() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void RequestThread::post(std::function<void()> work) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (stopping_) return;
    work_.push_back(std::move(work));
  }
  wake_.notify_one();
}

void RequestThread::loop() {
  for (;;) {
    std::function<void()> work;
    {
      std::unique_lock<std::mutex> lock(mutex_);
      wake_.wait(lock, [this] { return stopping_ || !work_.empty(); });
      if (work_.empty()) return;
      work = std::move(work_.front());
      work_.pop_front();
    }
    work();
  }
}

void Service::serve(const ServedModel* model, Scheduler* scheduler) {
  model_ = model;
  scheduler_ = scheduler;
  serving_ = true;
}

void Service::stop_serving() {
  serving_ = false;
  requests_.stop();
}

bool Service::has_key(const HttpHead& head) const {
  constexpr std::string_view kBearer = "Bearer ";
  std::string_view given = head.api_key;
  if (head.authorization.rfind(kBearer, 0) == 0)
    given = std::string_view(head.authorization).substr(kBearer.size());
  return same_text(given, options_.api_key);
}

// A server on a loopback address is for this machine: a page that makes its own name point there is not.
bool Service::is_own_host(const std::string& host) const {
  const bool local = options_.host == "::1" || is_loopback_name(options_.host);
  return !local || host.empty() || is_loopback_name(host_name(host));
}

bool Service::allows_origin(const HttpHead& head) {
  if (options_.cors_origin == "*" || head.origin == options_.cors_origin) return true;
  if (is_loopback_name(host_name(head.origin))) return true;
  return head.origin == "http://" + head.host || head.origin == "https://" + head.host;
}

std::optional<ApiError> Service::check(const HttpHead& head) {
  if (!is_own_host(head.host)) {
    return refusal(403, "permission_error",
                   "the Host '" + head.host +
                       "' is not this machine - call it localhost or 127.0.0.1, or start "
                       "the server with another --host");
  }
  if (!head.origin.empty() && !allows_origin(head)) {
    return refusal(403, "permission_error",
                   "web pages of " + head.origin + " may not call - start the server with --cors-origin");
  }
  const Route* route = find_route(head.path);
  if (route == nullptr) return refusal(404, "not_found_error", "there is no " + head.path);
  const bool looks = route->endpoint == nullptr;
  const bool right_method = looks ? head.method == "GET" || head.method == "HEAD" : head.method == "POST";
  if (!right_method)
    return refusal(405, "invalid_request_error", head.path + " takes " + (looks ? "GET" : "POST"));
  if (!options_.api_key.empty() && !route->is_public && !has_key(head))
    return refusal(401, "authentication_error", "the API key is missing or wrong");
  if (!serving_ && head.path != "/") {
    return refusal(503, "unavailable_error",
                   scheduler_ == nullptr ? "Loading model" : "the server is stopping");
  }
  return std::nullopt;
}

Json Service::error_body(const HttpHead& head, const ApiError& error) {
  return head.path.rfind("/v1/messages", 0) == 0 ? anthropic_error(error) : openai_error(error);
}

void Service::handle(HttpRequest request, std::shared_ptr<Reply> reply) {
  if (find_route(request.head.path)->endpoint == nullptr) return answer_status(request, *reply);
  requests_.post([this, request = std::move(request), reply = std::move(reply)] {
    if (!reply->cancelled()) answer(request, reply);
  });
}

void Service::answer_status(const HttpRequest& request, Reply& reply) {
  const std::string& path = request.head.path;
  if (path == "/") return reply.respond(200, "text/html; charset=utf-8", std::string(web_ui()));
  if (path == "/health" || path == "/v1/health") return reply.respond_json(200, {{"status", "ok"}});
  const ServedModel& model = *model_;
  if (path == "/models" || path == "/v1/models") return reply.respond_json(200, models_json(model));
  if (path.rfind("/v1/models/", 0) == 0) {
    if (path.substr(path.rfind('/') + 1) == model.name)
      return reply.respond_json(200, models_json(model)["data"][0]);
    const ApiError error = api_error(Status(Code::kNotFound, "there is no model '" + path.substr(11) + "'"));
    return reply.respond_json(error.http, openai_error(error));
  }
  const EngineView view = scheduler_.load()->view();
  if (path == "/props") return reply.respond_json(200, props_json(model, view));
  if (path == "/slots") return reply.respond_json(200, slots_json(model, view));
  reply.respond(200, "text/plain; version=0.0.4",
                metrics_text(view, network_ == nullptr ? HttpCounts{} : network_.load()->counts()));
}

void Service::answer(const HttpRequest& request, const std::shared_ptr<Reply>& reply) {
  std::optional<ApiError> error;
  try {
    const Endpoint endpoint = find_route(request.head.path)->endpoint;
    const bool needs_body = endpoint != slot_action;
    const Result<Json> body = parse_object(request.body.empty() && !needs_body ? "{}" : request.body);
    if (body.ok()) {
      Call call = {.model = *model_,
                   .scheduler = *scheduler_,
                   .head = request.head,
                   .request = body.value(),
                   .reply = reply};
      error = endpoint(call);
    } else {
      error = api_error(body.status());
    }
  } catch (const std::exception& exception) {
    // What a library throws here was not foreseen by the checks before it.
    error =
        api_error(Status(Code::kInternal, std::string("the request could not be read: ") + exception.what()));
  }
  if (error) reply->respond_json(error->http, error_body(request.head, *error));
}

}  // namespace ganglion::server

#include "server/connection.h"

#include <boost/asio/post.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/status.hpp>
#include <cstdio>

namespace ganglion::server {

namespace {

using boost::system::error_code;

constexpr uint32_t kMostHeadBytes = 32 * 1024;
// What a client may send ahead of its answer before it is no longer read.
constexpr size_t kMostAheadBytes = 64 * 1024;
constexpr size_t kMostDiscardBytes = size_t{32} << 20;
constexpr size_t kReadBytes = 4096;
constexpr int kLingerSeconds = 2;

std::string text_of(boost::beast::string_view view) {
  return std::string(view.data(), view.size());
}

// A parser's error as HTTP: 413 and 431 where a limit was passed, else 400.
ApiError parse_error(const error_code& error, size_t most_body_bytes) {
  ApiError api = bad_request("malformed HTTP request: " + error.message());
  if (error == http::error::body_limit) {
    api.http = 413;
    api.message = "the body is longer than " + std::to_string(most_body_bytes) + " bytes";
  } else if (error == http::error::header_limit || error == http::error::buffer_overflow) {
    api.http = 431;
    api.message = "the request's header is longer than " + std::to_string(kMostHeadBytes) + " bytes";
  }
  return api;
}

bool is_parse_error(const error_code& error) {
  return error.category() == http::make_error_code(http::error::bad_method).category() &&
         error != http::error::end_of_stream && error != http::error::partial_message;
}

}  // namespace

Connection::Connection(NetworkState& state, asio::ip::tcp::socket socket)
    : state_(state), socket_(std::move(socket)), timer_(state.context), buffer_(2 * kMostAheadBytes) {
  state_.connections.insert(this);
  ++state_.connection_count;
}

Connection::~Connection() {
  state_.connections.erase(this);
  --state_.connection_count;
  state_.used_bytes -= reserved_bytes_ + pending_.size() + sending_.size();
}

void Connection::read_head() {
  parser_.emplace();
  parser_->header_limit(kMostHeadBytes);
  parser_->body_limit(state_.options.most_body_bytes);
  head_ = {};
  keeps_alive_ = true;
  complete_ = streaming_ = allowed_origin_ = false;
  version_ = 11;
  reading_ = true;
  wait(Wait::kClient, state_.options.read_timeout_s);
  http::async_read_header(socket_, buffer_, *parser_,
                          [self = shared_from_this()](error_code error, size_t) { self->head_read(error); });
}

void Connection::head_read(const error_code& error) {
  reading_ = false;
  if (closed_) return;
  if (error && !is_parse_error(error)) return close();
  if (error) return refuse(parse_error(error, state_.options.most_body_bytes));
  const auto& message = parser_->get();
  version_ = message.version();
  keeps_alive_ = parser_->keep_alive() && !state_.stopping;
  const std::string target = text_of(message.target());
  const size_t question = target.find('?');
  head_ = {.method = text_of(message.method_string()),
           .path = target.substr(0, question),
           .query = question == std::string::npos ? "" : target.substr(question + 1),
           .host = text_of(message[http::field::host]),
           .origin = text_of(message[http::field::origin]),
           .authorization = text_of(message[http::field::authorization]),
           .api_key = text_of(message["x-api-key"])};
  allowed_origin_ = !head_.origin.empty() && state_.handler.allows_origin(head_);
  if (head_.method == "OPTIONS" && allowed_origin_) return answer_preflight();
  const std::optional<ApiError> refusal = state_.handler.check(head_);
  if (refusal) return refuse(*refusal);
  if (parser_->is_done()) return handle();
  if (!admit_body()) return;
  if (boost::beast::iequals(message[http::field::expect], "100-continue")) {
    append("HTTP/1.1 100 Continue\r\n\r\n");
  }
  parser_->eager(true);
  wait(Wait::kClient, state_.options.read_timeout_s);
  read_body();
}

// Refuses a body that says it is too long before it comes.
bool Connection::admit_body() {
  const auto length = parser_->content_length();
  const size_t limit = state_.options.most_body_bytes;
  if (!length || *length <= limit) return true;
  refuse(parse_error(http::make_error_code(http::error::body_limit), limit));
  return false;
}

void Connection::read_body() {
  reading_ = true;
  http::async_read_some(socket_, buffer_, *parser_,
                        [self = shared_from_this()](error_code error, size_t) { self->body_read(error); });
}

// Counts what has come; a body that only announces itself takes nothing from others.
void Connection::body_read(const error_code& error) {
  reading_ = false;
  if (closed_) return;
  if (error && !is_parse_error(error)) return close();
  if (error) return refuse(parse_error(error, state_.options.most_body_bytes));
  const size_t size = parser_->get().body().size();
  state_.used_bytes += size - reserved_bytes_;
  reserved_bytes_ = size;
  if (state_.used_bytes > state_.options.buffer_bytes) {
    return refuse(api_error(Status(Code::kResources, "too many large requests at once - try again later")));
  }
  if (parser_->is_done()) return handle();
  read_body();
}

void Connection::handle() {
  wait(Wait::kNothing, 0);
  HttpRequest request = {.head = head_, .body = std::move(parser_->get().body())};
  auto reply = std::make_shared<ConnectionReply>(state_, shared_from_this());
  reply_ = reply;
  watch();
  state_.handler.handle(std::move(request), std::move(reply));
}

// Answers without having read the body: what follows cannot be told from it, unless there is none.
void Connection::refuse(const ApiError& error) {
  if (!parser_->is_done()) keeps_alive_ = false;
  respond(error.http, "application/json", to_text(state_.handler.error_body(head_, error)));
}

void Connection::answer_preflight() {
  if (!parser_->is_done()) keeps_alive_ = false;
  const std::string wanted = text_of(parser_->get()[http::field::access_control_request_headers]);
  std::string text = head_text(204, nullptr);
  text += "Access-Control-Allow-Methods: GET, POST, OPTIONS\r\nAccess-Control-Max-Age: 3600\r\n";
  if (!wanted.empty()) text += "Access-Control-Allow-Headers: " + wanted + "\r\n";
  complete_ = true;
  append(text + "\r\n");
}

// A client that closes, even if only its sending side, no longer waits for the answer.
void Connection::watch() {
  if (watching_ || buffer_.size() >= kMostAheadBytes) return;
  watching_ = true;
  socket_.async_read_some(
      buffer_.prepare(kReadBytes),
      [self = shared_from_this()](error_code error, size_t count) { self->watched(error, count); });
}

void Connection::watched(const error_code& error, size_t count) {
  watching_ = false;
  if (closed_) return;
  if (!error) buffer_.commit(count);
  if (lingering_) return error && error != asio::error::operation_aborted ? close() : discard();
  if (error && error != asio::error::operation_aborted) return abandon();
  if (complete_ && !writing_ && pending_.empty()) return read_head();
  watch();
}

void Connection::discard() {
  if (buffer_.size() > 0) buffer_.consume(buffer_.size());
  watching_ = true;
  socket_.async_read_some(buffer_.prepare(kReadBytes),
                          [self = shared_from_this()](error_code error, size_t count) {
                            self->watching_ = false;
                            self->discarded_bytes_ += count;
                            if (self->closed_) return;
                            if (error || self->discarded_bytes_ > kMostDiscardBytes) return self->close();
                            self->discard();
                          });
}

std::string Connection::head_text(int status, const char* content_type) const {
  std::string text = version_ == 10 ? "HTTP/1.0 " : "HTTP/1.1 ";
  text += std::to_string(status) + " " +
          text_of(http::obsolete_reason(http::int_to_status(static_cast<unsigned>(status)))) +
          "\r\nServer: ganglion\r\n";
  if (content_type != nullptr) text += std::string("Content-Type: ") + content_type + "\r\n";
  text += keeps_alive_ ? "Connection: keep-alive\r\n" : "Connection: close\r\n";
  if (status == 401) text += "WWW-Authenticate: Bearer\r\n";
  if (status == 429 || status == 503) text += "Retry-After: 1\r\n";
  if (allowed_origin_) {
    text += "Access-Control-Allow-Origin: " +
            (state_.options.cors_origin == "*" ? std::string("*") : head_.origin) + "\r\nVary: Origin\r\n";
  }
  return text;
}

void Connection::respond(int status, const char* content_type, const std::string& body) {
  if (closed_ || complete_ || streaming_) return;
  if (state_.stopping) keeps_alive_ = false;
  std::string text = head_text(status, content_type);
  text += "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n";
  if (head_.method != "HEAD") text += body;
  complete_ = true;
  append(text);
}

void Connection::begin_stream(std::string keep_alive) {
  if (closed_ || complete_ || streaming_) return;
  streaming_ = true;
  keep_alive_event_ = std::move(keep_alive);
  if (version_ == 10) keeps_alive_ = false;
  std::string text = head_text(200, "text/event-stream");
  text += "Cache-Control: no-cache\r\nX-Accel-Buffering: no\r\n";
  if (version_ != 10) text += "Transfer-Encoding: chunked\r\n";
  append(text + "\r\n");
}

void Connection::send_event(const std::string& event) {
  if (closed_ || !streaming_ || complete_ || event.empty()) return;
  if (version_ == 10) return append(event);
  char size[20];
  std::snprintf(size, sizeof size, "%zx\r\n", event.size());
  append(size + event + "\r\n");
}

void Connection::end_stream() {
  if (closed_ || !streaming_ || complete_) return;
  complete_ = true;
  if (version_ != 10) return append("0\r\n\r\n");
  if (!writing_ && pending_.empty()) answer_complete();
}

void Connection::append(std::string_view text) {
  const bool too_slow = streaming_ && pending_.size() + text.size() > state_.options.most_unsent_bytes;
  const bool too_much = state_.used_bytes + text.size() > 2 * state_.options.buffer_bytes;
  if (too_slow || too_much) return abandon();
  pending_ += text;
  state_.used_bytes += text.size();
  if (!writing_) write();
}

void Connection::write() {
  writing_ = true;
  sending_.swap(pending_);
  if (!reading_) wait(Wait::kClient, state_.options.write_timeout_s);
  asio::async_write(socket_, asio::buffer(sending_),
                    [self = shared_from_this()](error_code error, size_t) { self->written(error); });
}

void Connection::written(const error_code& error) {
  writing_ = false;
  state_.used_bytes -= sending_.size();
  sending_.clear();
  if (sending_.capacity() > kMostAheadBytes) sending_.shrink_to_fit();
  if (closed_) return;
  if (error) return abandon();
  if (!pending_.empty()) return write();
  if (complete_) return answer_complete();
  if (streaming_) wait(Wait::kKeepAlive, state_.options.keep_alive_s);
}

void Connection::answer_complete() {
  wait(Wait::kNothing, 0);
  state_.used_bytes -= reserved_bytes_;
  reserved_bytes_ = 0;
  if (!keeps_alive_ || state_.stopping) return linger();
  if (!watching_) return read_head();
  error_code ignored;
  socket_.cancel(ignored);  // watched() goes on.
}

// Closing at once could destroy the answer on its way where the client is still sending.
void Connection::linger() {
  lingering_ = true;
  error_code ignored;
  socket_.shutdown(asio::ip::tcp::socket::shutdown_send, ignored);
  wait(Wait::kClient, kLingerSeconds);
  if (watching_) {
    socket_.cancel(ignored);
  } else {
    discard();
  }
}

void Connection::wait(Wait what, int seconds) {
  waiting_for_ = what;
  ++wait_count_;
  timer_.cancel();
  if (what == Wait::kNothing) return;
  timer_.expires_after(std::chrono::seconds(seconds));
  timer_.async_wait([weak = weak_from_this(), count = wait_count_](error_code error) {
    const std::shared_ptr<Connection> self = weak.lock();
    if (self && !error && count == self->wait_count_) self->waited();
  });
}

void Connection::waited() {
  if (closed_) return;
  if (waiting_for_ == Wait::kClient) return abandon();
  send_event(keep_alive_event_);
  if (!writing_) wait(Wait::kKeepAlive, state_.options.keep_alive_s);
}

void Connection::cancel_reply() {
  if (const std::shared_ptr<Reply> reply = reply_.lock()) reply->cancelled() = true;
}

void Connection::abandon() {
  cancel_reply();
  close();
}

void Connection::stop() {
  const bool idle = reply_.expired() && !writing_ && pending_.empty();
  if (idle && !lingering_) close();
}

void Connection::close() {
  if (closed_) return;
  closed_ = true;
  wait(Wait::kNothing, 0);
  state_.used_bytes -= pending_.size();
  pending_.clear();
  error_code ignored;
  socket_.close(ignored);
}

ConnectionReply::~ConnectionReply() {
  if (!answered_) {
    respond(500, "application/json",
            to_text(openai_error(api_error(Status(Code::kInternal, "the request was dropped")))));
  }
  if (open_stream_) end_stream();
  // The last reference may not go on another thread: a connection lives on the network thread.
  asio::post(state_.context, [connection = std::move(connection_)]() mutable { connection.reset(); });
}

void ConnectionReply::respond(int status, const char* content_type, std::string body) {
  answered_ = true;
  asio::post(state_.context, [connection = connection_, status, content_type, body = std::move(body)] {
    connection->respond(status, content_type, body);
  });
}

void ConnectionReply::begin_stream(std::string keep_alive) {
  answered_ = open_stream_ = true;
  asio::post(state_.context, [connection = connection_, keep_alive = std::move(keep_alive)]() mutable {
    connection->begin_stream(std::move(keep_alive));
  });
}

void ConnectionReply::send(std::string event) {
  asio::post(state_.context,
             [connection = connection_, event = std::move(event)] { connection->send_event(event); });
}

void ConnectionReply::end_stream() {
  open_stream_ = false;
  asio::post(state_.context, [connection = connection_] { connection->end_stream(); });
}

}  // namespace ganglion::server

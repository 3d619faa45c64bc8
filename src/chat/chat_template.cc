// Calls the Rust library, or says that it is not there.
#include "ganglion/chat.h"

#ifdef GANGLION_HAS_RUST

#include <cstdint>
#include <ctime>

#include "base/units.h"
#include "chat/chat_rust.h"

namespace ganglion {
namespace {

/// "2025-03-14T15:09:26"
std::string local_time() {
  const std::time_t now = std::time(nullptr);
  std::tm parts = {};
  char text[32] = {};
  if (localtime_r(&now, &parts) == nullptr) return "1970-01-01T00:00:00";
  (void)std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%S", &parts);
  return text;
}

Status status_of(int status, std::string message) {
  switch (status) {
    case GANGLION_CHAT_BAD_REQUEST:
      return {Code::kInvalidArgument, "chat request: " + message};
    case GANGLION_CHAT_RAISED:
      return {Code::kInvalidArgument, "the chat template refuses: " + message};
    case GANGLION_CHAT_SYNTAX:
      return {Code::kModelFile, "the chat template does not parse: " + message +
                                    " - give another with "
                                    "--chat-template-file"};
    case GANGLION_CHAT_UNSUPPORTED:
      return {Code::kUnsupported, "chat template: " + message};
    case GANGLION_CHAT_FAILED:
      return {Code::kInvalidArgument, "the chat template cannot render these messages: " + message};
    case GANGLION_CHAT_LIMIT:
      return {Code::kResources, "chat template: " + message};
    default:
      return {Code::kInternal, "chat template: " + message};
  }
}

}  // namespace

bool chat_available() {
  return true;
}

Result<std::string> render_chat(std::string_view template_source, std::string_view request_json) {
  const std::string now = local_time();
  ganglion_chat_text text = {};
  const int status = ganglion_chat_render(template_source.data(), template_source.size(), request_json.data(),
                                          request_json.size(), now.data(), now.size(), &text);
  std::string result(text.data, text.size);
  ganglion_chat_free(text);
  if (status == GANGLION_CHAT_OK) return result;
  return status_of(status, std::move(result));
}

}  // namespace ganglion

#else

namespace ganglion {

bool chat_available() {
  return false;
}

Result<std::string> render_chat(std::string_view /*template_source*/, std::string_view /*request_json*/) {
  return Status(
      Code::kUnsupported,
      "built without chat templates (no Rust): install cargo and configure with -DGANGLION_RUST=ON, or give "
      "a plain prompt");
}

}  // namespace ganglion

#endif

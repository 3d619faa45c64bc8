#include "base/status.h"

namespace ganglion {

std::string_view code_name(Code code) {
  switch (code) {
    case Code::kOk:
      return "ok";
    case Code::kInvalidArgument:
      return "invalid argument";
    case Code::kNotFound:
      return "not found";
    case Code::kModelFile:
      return "model file";
    case Code::kUnsupported:
      return "unsupported";
    case Code::kIo:
      return "i/o";
    case Code::kResources:
      return "resources";
    case Code::kContextOverflow:
      return "context overflow";
    case Code::kCancelled:
      return "cancelled";
    case Code::kPoisoned:
      return "poisoned";
    case Code::kDevice:
      return "device";
    case Code::kInternal:
      return "internal";
  }
  return "unknown";
}

Status Status::with_context(std::string_view context) const {
  if (ok()) return *this;
  return Status(code_, std::string(context) + ": " + message_);
}

int exit_code(Code code) {
  switch (code) {
    case Code::kOk:
      return 0;
    case Code::kInvalidArgument:
    case Code::kContextOverflow:
      return 2;
    case Code::kModelFile:
    case Code::kUnsupported:
      return 3;
    case Code::kResources:
      return 4;
    case Code::kCancelled:
      return 130;
    case Code::kNotFound:
    case Code::kIo:
    case Code::kPoisoned:
    case Code::kDevice:
    case Code::kInternal:
      return 1;
  }
  return 1;
}

}  // namespace ganglion

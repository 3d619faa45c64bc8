#include "base/status.h"

namespace ganglion::base {

std::string_view code_name(Code code) {
  switch (code) {
    case Code::kOk: return "ok";
    case Code::kInvalidArgument: return "invalid argument";
    case Code::kNotFound: return "not found";
    case Code::kModelFile: return "model file";
    case Code::kUnsupported: return "unsupported";
    case Code::kIo: return "i/o";
    case Code::kResources: return "resources";
    case Code::kContextOverflow: return "context overflow";
    case Code::kCancelled: return "cancelled";
    case Code::kPoisoned: return "poisoned";
    case Code::kInternal: return "internal";
  }
  return "unknown";
}

Status Status::with_context(std::string_view context) const {
  if (ok()) return *this;
  return Status(code_, std::string(context) + ": " + message_);
}

}  // namespace ganglion::base

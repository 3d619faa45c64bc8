#include "format/header_reader.h"

#include <algorithm>

#include "base/units.h"

namespace ganglion::format {

using base::Code;
using base::Result;
using base::Status;

namespace {
constexpr size_t kBufferBytes = 64 * base::kKiB;
}

Status HeaderReader::error(const std::string& text) const {
  return Status(Code::kModelFile, base::format("'%s': %s (at byte %llu of %llu)", file_.path().c_str(),
                                               text.c_str(), static_cast<unsigned long long>(position()),
                                               static_cast<unsigned long long>(file_.size())));
}

Status HeaderReader::fill() {
  buffer_start_ += at_;
  at_ = 0;
  buffer_.resize(static_cast<size_t>(std::min<uint64_t>(kBufferBytes, file_.size() - buffer_start_)));
  return file_.read_exact(buffer_start_, buffer_);
}

Status HeaderReader::read_bytes(void* out, uint64_t count, const char* what) {
  if (count > remaining()) {
    return error(base::format("the file is truncated: it ends inside %s, %llu bytes more are needed", what,
                              static_cast<unsigned long long>(count - remaining())));
  }
  auto* to = static_cast<uint8_t*>(out);
  while (count > 0) {
    if (at_ == buffer_.size()) GANGLION_RETURN_IF_ERROR(fill());
    const auto step = static_cast<size_t>(std::min<uint64_t>(count, buffer_.size() - at_));
    std::memcpy(to, buffer_.data() + at_, step);
    at_ += step;
    to += step;
    count -= step;
  }
  return base::ok_status();
}

Result<std::string> HeaderReader::read_string(const char* what, uint64_t limit) {
  GANGLION_ASSIGN_OR_RETURN(const uint64_t length, read<uint64_t>(what));
  if (length > remaining()) {
    return error(base::format("%s claims %llu bytes, beyond the end of the file", what,
                              static_cast<unsigned long long>(length)));
  }
  if (length > limit) {
    return error(base::format("%s is %llu bytes long, expected at most %llu", what,
                              static_cast<unsigned long long>(length),
                              static_cast<unsigned long long>(limit)));
  }
  std::string text(static_cast<size_t>(length), '\0');
  GANGLION_RETURN_IF_ERROR(read_bytes(text.data(), length, what));
  return text;
}

Status HeaderReader::append_bytes(uint64_t count, const char* what, std::vector<uint8_t>* out) {
  if (count > remaining()) {
    return error(base::format("%s claims %llu bytes, beyond the end of the file", what,
                              static_cast<unsigned long long>(count)));
  }
  const size_t old = out->size();
  out->resize(old + static_cast<size_t>(count));
  return read_bytes(out->data() + old, count, what);
}

}  // namespace ganglion::format

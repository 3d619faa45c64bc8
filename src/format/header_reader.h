// Sequential reader of a GGUF header: buffered, and every length is checked against what the file still
// holds.
#pragma once

#include <cstring>
#include <string>
#include <vector>

#include "base/status.h"
#include "platform/file.h"

namespace ganglion::format {

/// Reads little-endian scalars and strings in order. After an error the position is unspecified.
class HeaderReader {
 public:
  explicit HeaderReader(const platform::File& file) : file_(file) {}

  uint64_t position() const { return buffer_start_ + at_; }
  uint64_t remaining() const { return file_.size() - position(); }

  /// Errors: kModelFile "ends inside <what>", kIo.
  base::Status read_bytes(void* out, uint64_t count, const char* what);
  template <typename T>
  base::Result<T> read(const char* what) {
    T value{};
    GANGLION_RETURN_IF_ERROR(read_bytes(&value, sizeof value, what));
    return value;
  }
  /// A 64-bit length and that many bytes, at most `limit`.
  base::Result<std::string> read_string(const char* what, uint64_t limit);
  /// Appends `count` bytes to `out`, memory growing only as they really come.
  base::Status append_bytes(uint64_t count, const char* what, std::vector<uint8_t>* out);
  /// "<path>: " + text + position.
  base::Status error(const std::string& text) const;

 private:
  base::Status fill();

  const platform::File& file_;
  std::vector<uint8_t> buffer_;
  uint64_t buffer_start_ = 0;
  size_t at_ = 0;
};

}  // namespace ganglion::format

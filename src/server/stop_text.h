// Holds back generated text that may become a stop string, so that none is ever shown.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ganglion::server {

class StopText {
 public:
  explicit StopText(std::vector<std::string> stops);

  /// Adds text; returns what may be shown now. After a stop string was found nothing is shown any more.
  std::string push(std::string_view text);
  /// What was held back at the end of the text.
  std::string finish();
  bool found() const { return !found_.empty(); }
  /// The stop string that was found first in the text, else empty.
  const std::string& which() const { return found_; }

 private:
  std::vector<std::string> stops_;
  std::string held_;
  std::string found_;
};

/// Bytes at the end of `text` that are a beginning, but not all, of `mark`.
size_t partial_at_end(std::string_view text, std::string_view mark);

}  // namespace ganglion::server

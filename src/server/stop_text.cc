#include "server/stop_text.h"

#include <algorithm>
#include <utility>

namespace ganglion::server {

size_t partial_at_end(std::string_view text, std::string_view mark) {
  if (mark.empty()) return 0;
  for (size_t size = std::min(text.size(), mark.size() - 1); size > 0; --size) {
    if (text.substr(text.size() - size) == mark.substr(0, size)) return size;
  }
  return 0;
}

StopText::StopText(std::vector<std::string> stops) : stops_(std::move(stops)) {
  std::erase_if(stops_, [](const std::string& stop) { return stop.empty(); });
}

std::string StopText::push(std::string_view text) {
  if (found()) return "";
  held_ += text;
  size_t first = std::string::npos;
  size_t keep = 0;
  for (const std::string& stop : stops_) {
    const size_t at = held_.find(stop);
    if (at < first) {
      first = at;
      found_ = stop;
    }
    keep = std::max(keep, partial_at_end(held_, stop));
  }
  std::string shown = held_.substr(0, found() ? first : held_.size() - keep);
  held_.erase(0, found() ? held_.size() : shown.size());
  return shown;
}

std::string StopText::finish() {
  return std::exchange(held_, "");
}

}  // namespace ganglion::server

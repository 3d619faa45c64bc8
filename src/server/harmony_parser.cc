#include "server/harmony_parser.h"

#include <algorithm>
#include <array>

#include "server/stop_text.h"

namespace ganglion::server {

namespace {

constexpr std::string_view kMessage = "<|message|>";
constexpr std::string_view kRecipient = "to=functions.";
constexpr std::array<std::string_view, 4> kEnds = {"<|end|>", "<|start|>", "<|call|>", "<|return|>"};

}  // namespace

void HarmonyParser::emit(std::vector<OutputDelta>* deltas, std::string text) {
  if (text.empty()) return;
  deltas->push_back({.kind = kind_, .text = std::move(text), .tool = next_tool_ == 0 ? 0 : next_tool_ - 1});
}

void HarmonyParser::read_header(std::string_view header, std::vector<OutputDelta>* deltas) {
  const size_t recipient = header.find(kRecipient);
  kind_ = OutputDelta::Kind::kContent;
  if (recipient != std::string_view::npos) {
    std::string_view name = header.substr(recipient + kRecipient.size());
    name = name.substr(0, name.find_first_of(" <\n"));
    ++next_tool_;
    kind_ = OutputDelta::Kind::kToolStart;
    emit(deltas, std::string(name));
    kind_ = OutputDelta::Kind::kToolArguments;
  } else if (header.find("analysis") != std::string_view::npos) {
    kind_ = OutputDelta::Kind::kReasoning;
  }
}

bool HarmonyParser::step(std::vector<OutputDelta>* deltas, bool final) {
  if (state_ == State::kBegin) {
    if (in_.empty()) return false;
    // A model that leaves the format writes plain content.
    state_ = in_[0] == '<' ? State::kHeader : State::kBody;
    return true;
  }
  if (state_ == State::kHeader) {
    const size_t end = in_.find(kMessage);
    if (end == std::string::npos) return false;
    read_header(std::string_view(in_).substr(0, end), deltas);
    in_.erase(0, end + kMessage.size());
    state_ = State::kBody;
    return true;
  }
  size_t first = std::string::npos;
  size_t length = 0;
  size_t partial = 0;
  for (const std::string_view end : kEnds) {
    const size_t at = in_.find(end);
    if (at < first) {
      first = at;
      length = end.size();
    }
    partial = std::max(partial, partial_at_end(in_, end));
  }
  if (first != std::string::npos) {
    emit(deltas, in_.substr(0, first));
    in_.erase(0, first + length);
    state_ = State::kHeader;
    return true;
  }
  const size_t keep = final ? 0 : partial;
  emit(deltas, in_.substr(0, in_.size() - keep));
  in_.erase(0, in_.size() - keep);
  return false;
}

void HarmonyParser::push(std::string_view text, std::vector<OutputDelta>* deltas) {
  in_ += text;
  while (step(deltas, false)) {
  }
}

void HarmonyParser::finish(std::vector<OutputDelta>* deltas) {
  while (step(deltas, true)) {
  }
}

}  // namespace ganglion::server

// gpt-oss: an answer is a series of messages, each with a channel: analysis (reasoning), commentary (calls,
// to a function, or text), final. Source: OpenAI's description of the harmony format.
#pragma once

#include "server/output_parser.h"

namespace ganglion::server {

class HarmonyParser final : public OutputParser {
 public:
  void push(std::string_view text, std::vector<OutputDelta>* deltas) override;
  void finish(std::vector<OutputDelta>* deltas) override;

 private:
  enum class State { kBegin, kHeader, kBody };

  bool step(std::vector<OutputDelta>* deltas, bool final);
  void read_header(std::string_view header, std::vector<OutputDelta>* deltas);
  void emit(std::vector<OutputDelta>* deltas, std::string text);

  State state_ = State::kBegin;
  OutputDelta::Kind kind_ = OutputDelta::Kind::kContent;
  std::string in_;
  size_t next_tool_ = 0;
};

}  // namespace ganglion::server

#include "server/output_parser.h"

#include <algorithm>
#include <array>
#include <utility>

#include "server/call_scanner.h"
#include "server/harmony_parser.h"
#include "server/stop_text.h"

namespace ganglion::server {

namespace {

constexpr std::string_view kThinkOpen = "<think>";
constexpr std::string_view kThinkClose = "</think>";
constexpr std::string_view kSpace = " \n\t\r";
constexpr std::string_view kDeepSeekSeparator = "<｜tool▁sep｜>";
constexpr std::string_view kMistralArguments = "[ARGS]";
constexpr std::string_view kMistralCallId = "[CALL_ID]";

struct Marks {
  std::vector<std::string_view> open;  ///< A call follows.
  std::vector<std::string_view> skip;  ///< Around calls, without a meaning of their own.
  bool bare = false;                   ///< The answer may be a call without any mark.
};

Marks marks_of(ToolFormat format) {
  switch (format) {
    case ToolFormat::kHermes:
      return {.open = {"<tool_call>"}, .skip = {"</tool_call>"}};
    case ToolFormat::kLlama3:
      return {.open = {"<|python_tag|>"}, .skip = {"<|eom_id|>", "<|eot_id|>"}, .bare = true};
    case ToolFormat::kMistral:
      return {.open = {"[TOOL_CALLS]"}, .skip = {}};
    case ToolFormat::kDeepSeek:
      return {.open = {"<｜tool▁call▁begin｜>"},
              .skip = {"<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁end｜>", "```"}};
    case ToolFormat::kGeneric:
      return {.open = {}, .skip = {}, .bare = true};
    case ToolFormat::kNone:
    case ToolFormat::kHarmony:
      break;
  }
  return {};
}

/// start -> reasoning -> start -> text <-> open -> call | name -> arguments -> between -> text
class MarkParser final : public OutputParser {
 public:
  explicit MarkParser(const OutputFormat& format) : format_(format), marks_(marks_of(format.tools)) {
    if (format.begins_in_reasoning) state_ = State::kReasoning;
  }

  void push(std::string_view text, std::vector<OutputDelta>* deltas) override {
    in_ += text;
    out_ = deltas;
    while (step(false)) {
    }
  }

  void finish(std::vector<OutputDelta>* deltas) override {
    out_ = deltas;
    while (step(true)) {
    }
    if (state_ == State::kCall && !call_.started()) emit(OutputDelta::Kind::kContent, mark_ + call_.text());
    if (state_ == State::kName) emit(OutputDelta::Kind::kContent, mark_ + in_);
    if (state_ == State::kStart || state_ == State::kText) {
      const bool blank = state_ == State::kStart && (after_calls_ || reasoned_);
      emit(OutputDelta::Kind::kContent, blank ? "" : space_ + in_);
    }
    if (state_ == State::kReasoning) emit(OutputDelta::Kind::kReasoning, in_);
    in_.clear();
  }

 private:
  enum class State { kStart, kReasoning, kText, kOpen, kCall, kName, kArguments, kBetween };

  void emit(OutputDelta::Kind kind, std::string text) {
    if (text.empty()) return;
    out_->push_back({.kind = kind, .text = std::move(text), .tool = next_tool_ == 0 ? 0 : next_tool_ - 1});
  }

  void start_call(const std::string& name) {
    ++next_tool_;
    after_calls_ = true;
    emit(OutputDelta::Kind::kToolStart, name);
  }

  // Whether more text could turn the beginning of in_ into `mark`.
  bool may_become(std::string_view mark, bool final) const {
    return !final && in_.size() < mark.size() && mark.substr(0, in_.size()) == in_;
  }

  bool take(std::string_view mark) {
    if (in_.compare(0, mark.size(), mark) != 0) return false;
    in_.erase(0, mark.size());
    return true;
  }

  void skip_space(std::string* to) {
    const size_t end = std::min(in_.find_first_not_of(kSpace), in_.size());
    if (to != nullptr) *to += in_.substr(0, end);
    in_.erase(0, end);
  }

  // False when more text is needed, or all is done.
  bool step(bool final) {
    switch (state_) {
      case State::kStart:
        return step_start(final);
      case State::kReasoning:
        return step_reasoning(final);
      case State::kText:
        return step_text(final);
      case State::kOpen:
        return step_open(final);
      case State::kCall:
        return step_call();
      case State::kName:
        return step_name();
      case State::kArguments:
        return step_arguments();
      case State::kBetween:
        return step_between(final);
    }
    return false;
  }

  bool step_start(bool final) {
    skip_space(&space_);
    if (in_.empty()) return false;
    if (format_.reasoning && !reasoned_) {
      if (may_become(kThinkOpen, final)) return false;
      if (take(kThinkOpen)) {
        state_ = State::kReasoning;
        return true;
      }
    }
    if (marks_.bare && (in_[0] == '{' || (in_[0] == '[' && format_.tools == ToolFormat::kGeneric))) {
      mark_ = std::exchange(space_, "");
      state_ = State::kOpen;
      return true;
    }
    if (reasoned_) space_.clear();
    state_ = State::kText;
    return true;
  }

  bool step_reasoning(bool final) {
    if (!reasoned_) {
      skip_space(nullptr);
      if (in_.empty()) return false;
      reasoned_ = true;
    }
    const size_t end = in_.find(kThinkClose);
    if (end != std::string::npos) {
      const size_t text_end = in_.find_last_not_of(kSpace, end == 0 ? 0 : end - 1);
      if (end > 0 && text_end != std::string::npos) {
        emit(OutputDelta::Kind::kReasoning, in_.substr(0, text_end + 1));
      }
      in_.erase(0, end + kThinkClose.size());
      space_.clear();
      state_ = State::kStart;
      return true;
    }
    const size_t keep = final ? 0 : trailing_space_and(partial_at_end(in_, kThinkClose));
    emit(OutputDelta::Kind::kReasoning, in_.substr(0, in_.size() - keep));
    in_.erase(0, in_.size() - keep);
    return false;
  }

  // Bytes at the end of in_: what may become a mark, and the white space before it.
  size_t trailing_space_and(size_t partial) const {
    const size_t body = in_.size() - partial;
    const size_t end = body == 0 ? std::string::npos : in_.find_last_not_of(kSpace, body - 1);
    return end == std::string::npos ? in_.size() : in_.size() - end - 1;
  }

  bool step_text(bool final) {
    if (!space_.empty()) in_.insert(0, std::exchange(space_, ""));
    size_t first = std::string::npos;
    std::string_view found;
    size_t partial = 0;
    const auto look = [&](std::string_view mark) {
      const size_t at = in_.find(mark);
      if (at < first) {
        first = at;
        found = mark;
      }
      partial = std::max(partial, partial_at_end(in_, mark));
    };
    for (const std::string_view mark : marks_.open) look(mark);
    if (format_.tools == ToolFormat::kDeepSeek) look(marks_.skip[0]);
    if (first != std::string::npos) {
      const size_t end = first == 0 ? std::string::npos : in_.find_last_not_of(kSpace, first - 1);
      if (end != std::string::npos) emit(OutputDelta::Kind::kContent, in_.substr(0, end + 1));
      in_.erase(0, first + found.size());
      mark_ = found;
      const bool opens = std::find(marks_.open.begin(), marks_.open.end(), found) != marks_.open.end();
      state_ = opens ? State::kOpen : State::kBetween;
      return true;
    }
    const bool calls = format_.tools != ToolFormat::kNone;
    const size_t keep = final || !calls ? 0 : trailing_space_and(partial);
    emit(OutputDelta::Kind::kContent, in_.substr(0, in_.size() - keep));
    in_.erase(0, in_.size() - keep);
    return false;
  }

  bool step_open(bool final) {
    skip_space(nullptr);
    if (in_.empty()) return false;
    if (in_[0] == '{') {
      call_ = {};
      told_ = false;
      state_ = State::kCall;
      return true;
    }
    if (in_[0] == '[' && !in_list_) {
      if (format_.tools == ToolFormat::kMistral && may_become(kMistralArguments, final)) return false;
      in_list_ = true;
      mark_ += '[';
      in_.erase(0, 1);
      return true;
    }
    if (format_.tools == ToolFormat::kMistral || format_.tools == ToolFormat::kDeepSeek) {
      state_ = State::kName;
      return true;
    }
    emit(OutputDelta::Kind::kContent, std::exchange(mark_, ""));
    state_ = State::kText;
    in_list_ = false;
    return true;
  }

  bool step_call() {
    if (in_.empty()) return false;
    size_t used = 0;
    while (used < in_.size() && call_.state() == CallScanner::State::kRunning) call_.consume(in_[used++]);
    in_.erase(0, used);
    if (call_.started()) {
      if (!std::exchange(told_, true)) start_call(call_.name());
      emit(OutputDelta::Kind::kToolArguments, call_.take_arguments());
    }
    if (call_.state() == CallScanner::State::kRunning) return false;
    if (call_.state() == CallScanner::State::kBad && !told_) {
      emit(OutputDelta::Kind::kContent, mark_ + call_.text());
      in_list_ = false;
      state_ = State::kText;
      return true;
    }
    state_ = State::kBetween;
    return true;
  }

  // Mistral: name[CALL_ID]id[ARGS]{...}; DeepSeek: function SEP name \n ```json \n {...}, or name SEP {...}.
  bool step_name() {
    const size_t brace = in_.find('{');
    if (brace == std::string::npos) return false;
    std::string head = in_.substr(0, brace);
    const size_t separator = head.find(kDeepSeekSeparator);
    if (separator != std::string::npos) {
      const std::string before = head.substr(0, separator);
      head = before == "function" ? head.substr(separator + kDeepSeekSeparator.size()) : before;
    }
    head = head.substr(0, head.find(kMistralCallId));
    head = head.substr(0, head.find(kMistralArguments));
    head = head.substr(0, head.find('\n'));
    while (!head.empty() && kSpace.find(head.back()) != kSpace.npos) head.pop_back();
    in_.erase(0, brace);
    start_call(head);
    value_ = {};
    state_ = State::kArguments;
    return true;
  }

  bool step_arguments() {
    size_t used = 0;
    while (used < in_.size() && value_.state() != ValueScanner::State::kDone)
      (void)value_.consume(in_[used++]);
    emit(OutputDelta::Kind::kToolArguments, in_.substr(0, used));
    in_.erase(0, used);
    if (value_.state() != ValueScanner::State::kDone) return false;
    state_ = State::kBetween;
    return true;
  }

  bool step_between(bool final) {
    skip_space(nullptr);
    if (in_.empty()) return false;
    for (const auto& list : {marks_.skip, marks_.open}) {
      for (const std::string_view mark : list) {
        if (may_become(mark, final)) return false;
      }
    }
    for (const std::string_view mark : marks_.skip) {
      if (take(mark)) return true;
    }
    for (const std::string_view mark : marks_.open) {
      if (!take(mark)) continue;
      mark_ = mark;
      state_ = State::kOpen;
      return true;
    }
    if (in_[0] == ']' && in_list_) {
      in_list_ = false;
      in_.erase(0, 1);
      return true;
    }
    if ((in_[0] == ',' && in_list_) || (in_[0] == ';' && marks_.bare)) {
      in_.erase(0, 1);
      mark_.clear();
      state_ = State::kOpen;
      return true;
    }
    mark_.clear();
    state_ = in_[0] == '{' && marks_.bare ? State::kOpen : State::kText;
    return true;
  }

  const OutputFormat format_;
  const Marks marks_;
  State state_ = State::kStart;
  std::string in_;
  std::string space_;  ///< White space at the start, shown only if text follows.
  std::string mark_;   ///< What led into a call, shown if it is none.
  CallScanner call_;
  ValueScanner value_;
  std::vector<OutputDelta>* out_ = nullptr;
  size_t next_tool_ = 0;
  bool told_ = false;
  bool in_list_ = false;
  bool reasoned_ = false;
  bool after_calls_ = false;
};

}  // namespace

ToolFormat tool_format_of(std::string_view chat_template) {
  const auto has = [&](std::string_view mark) { return chat_template.find(mark) != std::string_view::npos; };
  if (has("<|channel|>")) return ToolFormat::kHarmony;
  if (has("<｜tool▁calls▁begin｜>") || has("<｜tool▁call▁begin｜>")) return ToolFormat::kDeepSeek;
  if (has("[TOOL_CALLS]")) return ToolFormat::kMistral;
  if (has("<tool_call>")) return ToolFormat::kHermes;
  if (has("<|python_tag|>") || (has("<|start_header_id|>") && has("\"parameters\"")))
    return ToolFormat::kLlama3;
  return ToolFormat::kGeneric;
}

std::unique_ptr<OutputParser> OutputParser::create(const OutputFormat& format) {
  if (format.tools == ToolFormat::kHarmony) return std::make_unique<HarmonyParser>();
  return std::make_unique<MarkParser>(format);
}

}  // namespace ganglion::server

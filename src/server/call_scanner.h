// Reads one tool call written as JSON while it comes: {"name": "...", "arguments": {...}}, in any order, also
// wrapped as {"type": "function", "function": {...}}.
#pragma once

#include <string>

namespace ganglion::server {

/// Follows a JSON value byte by byte; knows when it ends, not whether all of it is valid.
class ValueScanner {
 public:
  enum class State { kBegin, kInside, kDone, kBad };
  /// A number or word ends with the byte after it, which is then not consumed (false).
  bool consume(char c);
  State state() const { return state_; }
  bool is_string() const { return is_string_; }

 private:
  State state_ = State::kBegin;
  int depth_ = 0;
  bool in_string_ = false;
  bool escaped_ = false;
  bool is_string_ = false;
  bool is_word_ = false;
};

class CallScanner {
 public:
  enum class State { kRunning, kDone, kBad };

  /// Takes one byte of the call, from its '{' on.
  void consume(char c);
  State state() const { return state_; }
  /// Known once the name was read and arguments begin, or the call ended.
  bool started() const { return started_; }
  const std::string& name() const { return name_; }
  /// Pieces of the arguments that have come since the last call of this.
  std::string take_arguments();
  /// All bytes so far, for text that turns out to be no call.
  const std::string& text() const { return text_; }

 private:
  enum class Expects { kObject, kKeyOrEnd, kColon, kValue, kCommaOrEnd };

  void begin_value();
  void end_value();

  State state_ = State::kRunning;
  Expects expects_ = Expects::kObject;
  ValueScanner value_;
  std::string text_;
  std::string key_;
  std::string current_;  ///< The value or key being read.
  std::string name_;
  std::string arguments_;
  bool has_arguments_ = false;
  bool started_ = false;
  int wrapped_ = 0;  ///< Objects around the call that are still open.
};

/// What a JSON string literal stands for; the text itself if it is none.
std::string unquote(const std::string& literal);

}  // namespace ganglion::server

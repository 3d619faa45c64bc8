#include "server/call_scanner.h"

#include <nlohmann/json.hpp>
#include <utility>

namespace ganglion::server {

namespace {

// A call longer than this is none.
constexpr size_t kMostCallBytes = size_t{1} << 20;

bool is_space(char c) {
  return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

bool is_arguments(const std::string& key) {
  return key == "arguments" || key == "parameters" || key == "args" || key == "input";
}

bool is_wrapper(const std::string& key) {
  return key == "function" || key == "tool_call";
}

}  // namespace

std::string unquote(const std::string& literal) {
  const auto value = nlohmann::json::parse(literal, nullptr, false);
  return value.is_string() ? value.get<std::string>() : literal;
}

bool ValueScanner::consume(char c) {
  if (state_ == State::kBegin) {
    if (is_space(c)) return true;
    state_ = State::kInside;
    if (c == '"') {
      in_string_ = is_string_ = true;
    } else if (c == '{' || c == '[') {
      depth_ = 1;
    } else if (c == '-' || (c >= '0' && c <= '9') || c == 't' || c == 'f' || c == 'n') {
      is_word_ = true;
    } else {
      state_ = State::kBad;
    }
    return true;
  }
  if (is_word_) {
    if (!is_space(c) && c != ',' && c != '}' && c != ']') return true;
    state_ = State::kDone;
    return false;
  }
  if (in_string_) {
    if (escaped_) {
      escaped_ = false;
    } else if (c == '\\') {
      escaped_ = true;
    } else if (c == '"') {
      in_string_ = false;
      if (depth_ == 0) state_ = State::kDone;
    }
    return true;
  }
  if (c == '"') in_string_ = true;
  if (c == '{' || c == '[') ++depth_;
  if ((c == '}' || c == ']') && --depth_ == 0) state_ = State::kDone;
  return true;
}

std::string CallScanner::take_arguments() {
  return std::exchange(arguments_, "");
}

void CallScanner::begin_value() {
  value_ = {};
  current_.clear();
}

// A key or value has been read whole.
void CallScanner::end_value() {
  if (expects_ == Expects::kKeyOrEnd) {
    key_ = unquote(current_);
    expects_ = Expects::kColon;
    return;
  }
  expects_ = Expects::kCommaOrEnd;
  if (key_ == "name" && value_.is_string()) name_ = unquote(current_);
  // Some models write arguments as a string that holds JSON.
  if (is_arguments(key_) && value_.is_string()) arguments_ += unquote(current_);
}

void CallScanner::consume(char c) {
  text_ += c;
  if (state_ != State::kRunning) return;
  if (text_.size() > kMostCallBytes) {
    state_ = State::kBad;
    return;
  }
  const bool inside = value_.state() == ValueScanner::State::kInside;
  if (!inside && is_space(c)) return;
  switch (expects_) {
    case Expects::kObject:
      if (c != '{') state_ = State::kBad;
      expects_ = Expects::kKeyOrEnd;
      begin_value();
      return;
    case Expects::kColon:
      if (c != ':') state_ = State::kBad;
      expects_ = Expects::kValue;
      begin_value();
      return;
    case Expects::kCommaOrEnd:
      if (c == ',') {
        expects_ = Expects::kKeyOrEnd;
        begin_value();
      } else if (c == '}' && wrapped_ > 0) {
        --wrapped_;
      } else if (c == '}') {
        started_ = !name_.empty();
        state_ = started_ ? State::kDone : State::kBad;
        if (!has_arguments_) arguments_ = "{}";
      } else {
        state_ = State::kBad;
      }
      return;
    case Expects::kKeyOrEnd:
      if (!inside && c == '}') {
        expects_ = Expects::kCommaOrEnd;
        text_.pop_back();
        return consume(c);
      }
      if (!inside && c != '"') {
        state_ = State::kBad;
        return;
      }
      break;
    case Expects::kValue:
      if (!inside && c == '{' && is_wrapper(key_)) {
        ++wrapped_;
        expects_ = Expects::kKeyOrEnd;
        begin_value();
        return;
      }
      break;
  }
  const bool arguments = expects_ == Expects::kValue && is_arguments(key_);
  const bool took = value_.consume(c);
  if (value_.state() == ValueScanner::State::kBad) {
    state_ = State::kBad;
    return;
  }
  if (took) current_ += c;
  if (arguments) {
    has_arguments_ = true;
    if (took && !value_.is_string()) arguments_ += c;
    if (!name_.empty()) started_ = true;
  }
  if (value_.state() != ValueScanner::State::kDone) return;
  end_value();
  value_ = {};
  if (!took) {
    text_.pop_back();
    consume(c);
  }
}

}  // namespace ganglion::server

#include "server/gbnf.h"

#include <algorithm>
#include <cctype>
#include <map>

#include "server/json.h"

namespace ganglion::server {

namespace {

constexpr size_t kMostRules = 4096;

bool is_name(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' || c == '_';
}

class Rewriter {
 public:
  explicit Rewriter(const std::string& text) : text_(text) {}

  Result<std::string> run() {
    skip_blank();
    while (at_ < text_.size() && status_.ok()) {
      rule();
      skip_blank();
    }
    if (!status_.ok()) return status_;
    if (!names_.contains("root")) return fail("there is no rule 'root'"), status_;
    for (const auto& [name, known] : names_) {
      if (!known) return fail("rule '" + name + "' is not defined"), status_;
    }
    return out_;
  }

 private:
  void fail(const std::string& what) {
    const auto line = 1 + std::count(text_.begin(), text_.begin() + static_cast<ptrdiff_t>(at_), '\n');
    if (status_.ok()) status_ = Status(Code::kInvalidArgument, "line " + std::to_string(line) + ": " + what);
  }

  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }

  // White space, line ends and comments.
  void skip_blank() {
    while (at_ < text_.size()) {
      if (text_[at_] == '#') {
        at_ = std::min(text_.find('\n', at_), text_.size());
      } else if (std::isspace(static_cast<unsigned char>(text_[at_])) != 0) {
        ++at_;
      } else {
        return;
      }
    }
  }

  std::string name() {
    const size_t begin = at_;
    while (is_name(peek())) ++at_;
    return text_.substr(begin, at_ - begin);
  }

  // Lark's rules are lower case and have no '-'; root is its start.
  std::string reference(const std::string& name, bool defines) {
    bool& known = names_[name];
    known = known || defines;
    if (names_.size() > kMostRules) fail("too many rules");
    if (name == "root") return "start";
    std::string lark = "r";
    for (const char c : name) {
      if (std::isupper(static_cast<unsigned char>(c)) != 0) lark += "_u";
      lark += c == '-' ? std::string("_d")
                       : std::string(1, static_cast<char>(std::tolower(static_cast<unsigned char>(c))));
    }
    return lark;
  }

  bool at_definition() {
    const size_t before = at_;
    (void)name();
    while (peek() == ' ' || peek() == '\t') ++at_;
    const bool defines = at_ > before && text_.compare(at_, 3, "::=") == 0;
    at_ = before;
    return defines;
  }

  void rule() {
    if (!is_name(peek()) || !at_definition()) return fail("a rule must begin with 'name ::='");
    out_ += reference(name(), true) + ":";
    at_ = text_.find("::=", at_) + 3;
    int depth = 0;
    for (skip_blank(); at_ < text_.size() && status_.ok(); skip_blank()) {
      if (depth == 0 && is_name(peek()) && at_definition()) break;
      item(&depth);
    }
    if (depth != 0) fail("a parenthesis is not closed");
    out_ += "\n";
  }

  void item(int* depth) {
    const char c = peek();
    if (c == '"') return literal();
    if (c == '[') return char_class();
    if (is_name(c)) {
      out_ += " " + reference(name(), false);
    } else if (c == '.') {
      out_ += " /[\\s\\S]/";
      ++at_;
    } else if (c == '{') {
      const size_t end = text_.find('}', at_);
      if (end == std::string::npos) return fail("'{' is not closed");
      out_ += text_.substr(at_, end + 1 - at_);
      at_ = end + 1;
    } else if (std::string_view("|()*+?").find(c) != std::string_view::npos) {
      *depth += c == '(' ? 1 : c == ')' ? -1 : 0;
      out_ += c == '|' || c == '(' ? std::string(" ") + c : std::string(1, c);
      ++at_;
    } else {
      fail(std::string("unexpected '") + c + "'");
    }
  }

  // As a JSON string, which Lark's are.
  void literal() {
    const size_t begin = at_++;
    std::string json = "\"";
    while (at_ < text_.size() && text_[at_] != '"' && text_[at_] != '\n') {
      if (text_[at_] == '\\' && at_ + 3 < text_.size() && text_[at_ + 1] == 'x') {
        json += "\\u00" + text_.substr(at_ + 2, 2);
        at_ += 4;
      } else if (text_[at_] == '\\' && at_ + 1 < text_.size()) {
        json += text_.substr(at_, 2);
        at_ += 2;
      } else {
        json += text_[at_++];
      }
    }
    if (peek() != '"') return fail("a string is not closed");
    ++at_;
    const Result<Json> value = parse_json(json + "\"");
    if (!value.ok() || !value.value().is_string())
      return fail("not a string: " + text_.substr(begin, std::min<size_t>(at_ - begin, 60)));
    out_ += " " + to_text(value.value());
  }

  void char_class() {
    std::string regex = "[";
    for (++at_; at_ < text_.size() && text_[at_] != ']' && text_[at_] != '\n'; ++at_) {
      if (text_[at_] == '\\' && at_ + 1 < text_.size()) {
        regex += text_.substr(at_++, 2);
      } else if (text_[at_] == '[' || text_[at_] == '/' || text_[at_] == '&' || text_[at_] == '~') {
        regex += std::string("\\") + text_[at_];
      } else {
        regex += text_[at_];
      }
    }
    if (peek() != ']') return fail("a character class is not closed");
    ++at_;
    out_ += " /" + regex + "]/";
  }

  const std::string& text_;
  size_t at_ = 0;
  std::string out_;
  std::map<std::string, bool> names_;  ///< To whether they are defined.
  Status status_;
};

}  // namespace

Result<std::string> lark_of(const std::string& grammar) {
  if (grammar.find("::=") == std::string::npos) return grammar;
  return Rewriter(grammar).run();
}

}  // namespace ganglion::server

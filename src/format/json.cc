// Built with exceptions, unlike the rest of the room: nothing thrown leaves this file.
#include "format/json.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <unordered_set>

#include "base/units.h"
#include "platform/file.h"

namespace ganglion::format {

using base::Code;
using base::Result;
using base::Status;

namespace {
constexpr size_t kMaxDepth = 64;
}

// Receives the parser's events; false stops it.
class JsonBuilder {
 public:
  using number_integer_t = nlohmann::json::number_integer_t;
  using number_unsigned_t = nlohmann::json::number_unsigned_t;
  using number_float_t = nlohmann::json::number_float_t;
  using string_t = nlohmann::json::string_t;
  using binary_t = nlohmann::json::binary_t;

  bool null() { return add(Json()); }
  bool boolean(bool value) {
    Json json;
    json.kind_ = Json::Kind::kBool;
    json.integer_ = value ? 1 : 0;
    return add(std::move(json));
  }
  bool number_integer(number_integer_t value) {
    Json json;
    json.kind_ = Json::Kind::kInteger;
    json.negative_ = value < 0;
    json.integer_ = value < 0 ? uint64_t{0} - static_cast<uint64_t>(value) : static_cast<uint64_t>(value);
    return add(std::move(json));
  }
  bool number_unsigned(number_unsigned_t value) {
    Json json;
    json.kind_ = Json::Kind::kInteger;
    json.integer_ = value;
    return add(std::move(json));
  }
  bool number_float(number_float_t value, const string_t&) {
    Json json;
    json.kind_ = Json::Kind::kNumber;
    json.number_ = value;
    return add(std::move(json));
  }
  bool string(string_t& value) {
    Json json;
    json.kind_ = Json::Kind::kString;
    json.text_ = std::move(value);
    return add(std::move(json));
  }
  bool binary(binary_t&) { return false; }
  bool start_object(size_t) { return open(Json::Kind::kObject); }
  bool start_array(size_t) { return open(Json::Kind::kArray); }
  bool key(string_t& value) {
    if (!seen_.back().insert(value).second) {
      error_ = "the member '" + value.substr(0, 80) + "' occurs twice";
      return false;
    }
    open_.back().keys_.push_back(std::move(value));
    return true;
  }
  bool end_object() { return close(); }
  bool end_array() { return close(); }
  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception&) {
    error_ = base::format("not valid JSON (at byte %zu)", position);
    return false;
  }

  Json take() { return std::move(root_); }
  const std::string& error() const { return error_; }

 private:
  bool open(Json::Kind kind) {
    if (open_.size() == kMaxDepth) {
      error_ = base::format("nested deeper than %zu levels", kMaxDepth);
      return false;
    }
    open_.emplace_back();
    open_.back().kind_ = kind;
    seen_.emplace_back();
    return true;
  }
  bool close() {
    Json done = std::move(open_.back());
    open_.pop_back();
    seen_.pop_back();
    done.items_.shrink_to_fit();
    return add(std::move(done));
  }
  bool add(Json json) {
    if (open_.empty()) {
      root_ = std::move(json);
    } else {
      open_.back().items_.push_back(std::move(json));
    }
    return true;
  }

  std::vector<Json> open_;
  std::vector<std::unordered_set<std::string>> seen_;
  Json root_;
  std::string error_;
};

Result<Json> Json::parse(std::string_view text, const std::string& name) {
  try {
    JsonBuilder builder;
    if (nlohmann::json::sax_parse(text.begin(), text.end(), &builder)) return builder.take();
    return Status(Code::kModelFile,
                  "'" + name + "': " + (builder.error().empty() ? "not valid JSON" : builder.error()) +
                      " - the file is damaged or incomplete");
  } catch (const std::bad_alloc&) {
    return Status(Code::kResources, "'" + name + "': too large for the memory there is");
  } catch (const std::exception& error) {
    return Status(Code::kModelFile, "'" + name + "': " + error.what());
  }
}

Result<Json> Json::read_file(const std::string& path, uint64_t limit_bytes) {
  const Result<std::string> text = platform::read_text_file(path, limit_bytes);
  if (!text.ok()) {
    const Code code = text.status().code();
    return Status(code == Code::kInvalidArgument ? Code::kModelFile : code, text.status().message());
  }
  return parse(text.value(), path);
}

double Json::number_or(double fallback) const {
  if (kind_ == Kind::kNumber) return number_;
  if (kind_ != Kind::kInteger) return fallback;
  const auto magnitude = static_cast<double>(integer_);
  return negative_ ? -magnitude : magnitude;
}

bool Json::try_uint(uint64_t limit, uint64_t* out) const {
  if (kind_ != Kind::kInteger || negative_ || integer_ > limit) return false;
  *out = integer_;
  return true;
}

const Json& Json::operator[](std::string_view key) const {
  static const Json kNull;
  const auto at = std::find(keys_.begin(), keys_.end(), key);
  return at == keys_.end() ? kNull : items_[static_cast<size_t>(at - keys_.begin())];
}

}  // namespace ganglion::format

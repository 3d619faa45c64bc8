#include "server/json.h"

#include <cmath>
#include <limits>

namespace ganglion::server {

namespace {

constexpr int kMostDepth = 100;

// Looked at before parsing, so that no depth can exhaust a stack.
bool nests_too_deeply(std::string_view json) {
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < json.size(); ++i) {
    const char c = json[i];
    if (in_string) {
      if (c == '\\') ++i;
      in_string = c != '"';
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      if (++depth > kMostDepth) return true;
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return false;
}

// "... parse error at line 1, column 5: ..." without the library's own numbering.
std::string reason(const std::exception& error) {
  const std::string text = error.what();
  const size_t end = text.find("] ");
  return end == std::string::npos ? text : text.substr(end + 2, 200);
}

}  // namespace

Result<Json> parse_json(std::string_view text) {
  if (nests_too_deeply(text)) {
    return Status(Code::kInvalidArgument,
                  "the JSON is nested deeper than " + std::to_string(kMostDepth) + " levels");
  }
  try {
    return Json::parse(text.begin(), text.end());
  } catch (const Json::exception& error) {
    // The library quotes the input, which need not be UTF-8.
    return Status(Code::kInvalidArgument, "no valid JSON: " + reason(error));
  }
}

Result<Json> parse_object(std::string_view text) {
  Result<Json> parsed = parse_json(text);
  if (parsed.ok() && !parsed.value().is_object()) {
    return Status(Code::kInvalidArgument, "the request must be a JSON object");
  }
  return parsed;
}

std::string to_text(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

const Json* Fields::find(const char* name) const {
  const auto at = object_.find(name);
  return at == object_.end() || at->is_null() ? nullptr : &*at;
}

void Fields::fail(const std::string& name, const std::string& what) {
  if (status_.ok()) status_ = Status(Code::kInvalidArgument, name + ": " + what);
}

void Fields::read(const char* name, float* value) {
  const Json* field = find(name);
  if (field == nullptr) return;
  if (!field->is_number() || !std::isfinite(field->get<double>())) return fail(name, "must be a number");
  *value = static_cast<float>(field->get<double>());
}

void Fields::read(const char* name, bool* value) {
  const Json* field = find(name);
  if (field == nullptr) return;
  if (!field->is_boolean()) return fail(name, "must be true or false");
  *value = field->get<bool>();
}

void Fields::read(const char* name, std::string* value) {
  const Json* field = find(name);
  if (field == nullptr) return;
  if (!field->is_string()) return fail(name, "must be a string");
  *value = field->get<std::string>();
}

void Fields::read(const char* name, int64_t* value) {
  const Json* field = find(name);
  if (field == nullptr) return;
  constexpr double kMost = 9e15;  // Doubles hold every whole number up to here.
  if (field->is_number_unsigned() && field->get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) {
    return fail(name, "must be below 2^63");
  }
  if (field->is_number_integer()) {
    *value = field->get<int64_t>();
    return;
  }
  const double number = field->is_number() ? field->get<double>() : std::nan("");
  if (!(std::abs(number) <= kMost) || number != std::floor(number)) return fail(name, "must be an integer");
  *value = static_cast<int64_t>(number);
}

void Fields::read(const char* name, int32_t* value) {
  int64_t wide = *value;
  read(name, &wide);
  if (wide < std::numeric_limits<int32_t>::min() || wide > std::numeric_limits<int32_t>::max()) {
    return fail(name, std::to_string(wide) + " is out of range");
  }
  *value = static_cast<int32_t>(wide);
}

void Fields::read_count(const char* name, size_t most, size_t* value) {
  auto wide = static_cast<int64_t>(*value);
  read(name, &wide);
  if (wide < 0 || static_cast<uint64_t>(wide) > most) {
    return fail(name, std::to_string(wide) + ": must be from 0 to " + std::to_string(most));
  }
  *value = static_cast<size_t>(wide);
}

void Fields::read(const char* name, std::vector<std::string>* value) {
  const Json* field = find(name);
  if (field == nullptr) return;
  if (field->is_string()) {
    *value = {field->get<std::string>()};
    return;
  }
  if (!field->is_array()) return fail(name, "must be a string or a list of strings");
  value->clear();
  for (const Json& entry : *field) {
    if (!entry.is_string()) return fail(name, "must be a string or a list of strings");
    value->push_back(entry.get<std::string>());
  }
}

}  // namespace ganglion::server

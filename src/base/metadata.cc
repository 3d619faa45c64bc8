#include "base/metadata.h"

#include <cmath>
#include <cstdlib>
#include <cstring>

#include "base/units.h"

namespace ganglion::base {

namespace {

Status missing(std::string_view key) {
  return Status(Code::kModelFile, "metadata key '" + std::string(key) + "' is missing");
}

Status wrong_kind(std::string_view key, const Value& value, std::string_view expected) {
  return Status(Code::kModelFile, "metadata key '" + std::string(key) + "' is " +
                                      std::string(value_kind_name(value.kind)) + ", expected " +
                                      std::string(expected));
}

// Element `index` of a packed array of numbers as a double.
double packed_number(const Value& value, uint64_t index) {
  const uint8_t* at = value.packed.data() + index * value.element_bytes;
  if (value.element_kind == ValueKind::kFloat) {
    if (value.element_bytes == 4) {
      float f;
      std::memcpy(&f, at, 4);
      return static_cast<double>(f);
    }
    double d;
    std::memcpy(&d, at, 8);
    return d;
  }
  uint64_t raw = 0;
  std::memcpy(&raw, at, value.element_bytes);
  if (value.element_kind == ValueKind::kInt) {
    const unsigned shift = 64 - 8U * value.element_bytes;
    return static_cast<double>(static_cast<int64_t>(raw << shift) >> shift);
  }
  return static_cast<double>(raw);
}

bool parse_int(const std::string& text, int64_t* out) {
  char* end = nullptr;
  *out = std::strtoll(text.c_str(), &end, 10);
  return !text.empty() && *end == 0;
}

bool parse_float(const std::string& text, double* out) {
  char* end = nullptr;
  *out = std::strtod(text.c_str(), &end);
  return !text.empty() && *end == 0;
}

bool parse_bool(const std::string& text, bool* out) {
  *out = text == "true" || text == "1";
  return *out || text == "false" || text == "0";
}

// Fills `value` with `text` read as `kind`.
bool parse_as(ValueKind kind, const std::string& text, Value* value) {
  value->kind = kind;
  switch (kind) {
    case ValueKind::kUint: {
      if (!parse_int(text, &value->int_value) || value->int_value < 0) return false;
      value->uint_value = static_cast<uint64_t>(value->int_value);
      return true;
    }
    case ValueKind::kInt:
      return parse_int(text, &value->int_value);
    case ValueKind::kFloat:
      return parse_float(text, &value->float_value);
    case ValueKind::kBool:
      return parse_bool(text, &value->bool_value);
    case ValueKind::kString:
      value->text = text;
      return true;
    case ValueKind::kArray:
      return false;
  }
  return false;
}

}  // namespace

std::string_view value_kind_name(ValueKind kind) {
  switch (kind) {
    case ValueKind::kUint:
      return "an unsigned integer";
    case ValueKind::kInt:
      return "an integer";
    case ValueKind::kFloat:
      return "a float";
    case ValueKind::kBool:
      return "a bool";
    case ValueKind::kString:
      return "a string";
    case ValueKind::kArray:
      return "an array";
  }
  return "unknown";
}

bool StringArrayReader::next(std::string_view* out) {
  if (left_ == 0) return false;
  uint64_t length = 0;
  std::memcpy(&length, rest_, 8);
  *out = std::string_view(reinterpret_cast<const char*>(rest_) + 8, static_cast<size_t>(length));
  rest_ += 8 + length;
  --left_;
  return true;
}

Status Metadata::set_override(const std::string& key, std::string_view text) {
  std::string body(text);
  Value value;
  bool good = false;
  const size_t colon = body.find(':');
  const std::string prefix = colon == std::string::npos ? "" : body.substr(0, colon);
  if (prefix == "int" || prefix == "float" || prefix == "bool" || prefix == "str") {
    body = body.substr(colon + 1);
    const ValueKind kind = prefix == "int"     ? ValueKind::kInt
                           : prefix == "float" ? ValueKind::kFloat
                           : prefix == "bool"  ? ValueKind::kBool
                                               : ValueKind::kString;
    good = parse_as(kind, body, &value);
  } else if (const Value* old = find(key); old != nullptr) {
    good = parse_as(old->kind, body, &value);
  } else {
    for (ValueKind kind : {ValueKind::kInt, ValueKind::kFloat, ValueKind::kBool, ValueKind::kString}) {
      if ((good = parse_as(kind, body, &value))) break;
    }
    if (body == "1" || body == "0") value.kind = ValueKind::kInt;
  }
  if (key.empty() || !good) {
    return Status(Code::kInvalidArgument, "override '" + key + "=" + std::string(text) +
                                              "' does not fit the key's kind - write key=value, or "
                                              "key=int:1, key=float:1.5, key=bool:true, key=str:text");
  }
  set(key, std::move(value));
  return ok_status();
}

const Value* Metadata::find(std::string_view key) const {
  const auto it = values_.find(key);
  return it == values_.end() ? nullptr : &it->second;
}

void Metadata::drop_array(std::string_view key) {
  const auto it = values_.find(key);
  if (it != values_.end()) std::vector<uint8_t>().swap(it->second.packed);
}

Result<uint64_t> Metadata::uint_required(std::string_view key) const {
  if (!has(key)) return missing(key);
  return uint_or(key, 0);
}

Result<std::string> Metadata::string_required(std::string_view key) const {
  if (!has(key)) return missing(key);
  return string_or(key, "");
}

Result<uint64_t> Metadata::uint_or(std::string_view key, uint64_t fallback) const {
  const Value* value = find(key);
  if (value == nullptr) return fallback;
  if (value->kind == ValueKind::kUint) return value->uint_value;
  if (value->kind == ValueKind::kInt && value->int_value >= 0) return static_cast<uint64_t>(value->int_value);
  return wrong_kind(key, *value, "an unsigned integer");
}

Result<double> Metadata::float_or(std::string_view key, double fallback) const {
  const Value* value = find(key);
  if (value == nullptr) return fallback;
  if (value->kind == ValueKind::kInt) return static_cast<double>(value->int_value);
  if (value->kind == ValueKind::kUint) return static_cast<double>(value->uint_value);
  if (value->kind != ValueKind::kFloat) return wrong_kind(key, *value, "a float");
  if (!std::isfinite(value->float_value)) {
    return Status(Code::kModelFile, "metadata key '" + std::string(key) + "' is not a finite number");
  }
  return value->float_value;
}

Result<bool> Metadata::bool_or(std::string_view key, bool fallback) const {
  const Value* value = find(key);
  if (value == nullptr) return fallback;
  if (value->kind != ValueKind::kBool) return wrong_kind(key, *value, "a bool");
  return value->bool_value;
}

Result<std::string> Metadata::string_or(std::string_view key, std::string fallback) const {
  const Value* value = find(key);
  if (value == nullptr) return fallback;
  if (value->kind != ValueKind::kString) return wrong_kind(key, *value, "a string");
  return value->text;
}

Result<std::vector<double>> Metadata::numbers(std::string_view key) const {
  std::vector<double> out;
  const Value* value = find(key);
  if (value == nullptr) return out;
  switch (value->kind) {
    case ValueKind::kUint:
      out.push_back(static_cast<double>(value->uint_value));
      return out;
    case ValueKind::kInt:
      out.push_back(static_cast<double>(value->int_value));
      return out;
    case ValueKind::kFloat:
      out.push_back(value->float_value);
      return out;
    case ValueKind::kBool:
    case ValueKind::kString:
      return wrong_kind(key, *value, "an array of numbers");
    case ValueKind::kArray:
      break;
  }
  if (value->element_kind == ValueKind::kString ||
      value->packed.size() < value->count * value->element_bytes) {
    return wrong_kind(key, *value, "an array of numbers");
  }
  out.reserve(value->count);
  for (uint64_t i = 0; i < value->count; ++i) out.push_back(packed_number(*value, i));
  return out;
}

Result<const Value*> Metadata::string_array(std::string_view key) const {
  const Value* value = find(key);
  if (value == nullptr) return value;
  if (value->kind != ValueKind::kArray || value->element_kind != ValueKind::kString) {
    return wrong_kind(key, *value, "an array of strings");
  }
  return value;
}

}  // namespace ganglion::base

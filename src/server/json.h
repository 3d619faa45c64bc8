// JSON of requests and answers: parsing with limits, reading of fields with errors that name them.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "ganglion/error.h"

namespace ganglion::server {

/// Keeps the order of keys, which chat templates show.
using Json = nlohmann::ordered_json;

/// Errors: kInvalidArgument (no JSON object, not UTF-8, nested deeper than 100).
Result<Json> parse_object(std::string_view text);
/// Any JSON value. Errors: as parse_object.
Result<Json> parse_json(std::string_view text);

/// One line; invalid UTF-8 becomes U+FFFD.
std::string to_text(const Json& value);

/// Reads fields of an object. What is absent or null leaves the value as it was; the first field of a wrong
/// kind is kept as the error.
class Fields {
 public:
  explicit Fields(const Json& object) : object_(object) {}

  /// Null if the field is absent or null.
  const Json* find(const char* name) const;
  bool has(const char* name) const { return find(name) != nullptr; }

  void read(const char* name, float* value);
  void read(const char* name, bool* value);
  void read(const char* name, std::string* value);
  void read(const char* name, int64_t* value);
  void read(const char* name, int32_t* value);
  /// A string or a list of strings.
  void read(const char* name, std::vector<std::string>* value);
  /// Any number of at least 0, up to `most`.
  void read_count(const char* name, size_t most, size_t* value);

  /// "field: what it must be"; keeps the first.
  void fail(const std::string& name, const std::string& what);
  const Status& status() const { return status_; }

 private:
  const Json& object_;
  Status status_;
};

}  // namespace ganglion::server

// JSON documents as values: the one place that knows the JSON library, whose exceptions end here. For files
// beside a model (configuration, tokenizer, headers of safetensors), which nobody vouches for.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace ganglion::format {

/// One value with what is below it. Immutable once parsed; const use is thread-safe.
/// Getters never fail: what has another kind reads as the fallback, and a missing member as a null value.
class Json {
 public:
  enum class Kind : uint8_t { kNull, kBool, kInteger, kNumber, kString, kArray, kObject };

  /// Parses a whole document. `name` is what it is called in messages.
  /// Errors: kModelFile for malformed text (with the byte), invalid UTF-8, a member that occurs twice, or
  /// over 64 levels; kResources where memory runs out.
  static base::Result<Json> parse(std::string_view text, const std::string& name);
  /// The document in a file of at most `limit_bytes`. Errors: as parse; kNotFound, kIo, kModelFile (too
  /// long).
  static base::Result<Json> read_file(const std::string& path, uint64_t limit_bytes);

  Kind kind() const { return kind_; }
  bool is_null() const { return kind_ == Kind::kNull; }
  bool is_string() const { return kind_ == Kind::kString; }
  bool is_array() const { return kind_ == Kind::kArray; }
  bool is_object() const { return kind_ == Kind::kObject; }

  const std::string& text() const { return text_; }  ///< Empty unless a string.
  bool bool_or(bool fallback) const { return kind_ == Kind::kBool ? integer_ != 0 : fallback; }
  double number_or(double fallback) const;
  /// Whether this is an integer in [0, limit]; then *out is it.
  [[nodiscard]] bool try_uint(uint64_t limit, uint64_t* out) const;

  /// Elements of an array, or values of an object in the order of keys().
  const std::vector<Json>& items() const { return items_; }
  const std::vector<std::string>& keys() const { return keys_; }
  /// The member `key` of an object, or a null value. Cost: linear in the members.
  const Json& operator[](std::string_view key) const;
  bool has(std::string_view key) const { return !(*this)[key].is_null(); }

 private:
  friend class JsonBuilder;
  Kind kind_ = Kind::kNull;
  bool negative_ = false;
  uint64_t integer_ = 0;  // magnitude
  double number_ = 0;
  std::string text_;
  std::vector<Json> items_;
  std::vector<std::string> keys_;
};

}  // namespace ganglion::format

// Key-value metadata of a model: what a GGUF header says, without knowing that format.
// Filled by format/, read by tokenizer/, model_config/ and chat/. Values of arrays stay in their packed form,
// so that a vocabulary of 262,144 strings costs its bytes once and can be dropped after use.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace ganglion::base {

enum class ValueKind : uint8_t { kUint, kInt, kFloat, kBool, kString, kArray };

/// "an integer", "a string", ... for messages.
std::string_view value_kind_name(ValueKind kind);

/// One value. Scalars sit in the member of their kind; arrays in `packed`: numbers little-endian of
/// `element_bytes` each, strings as a 64-bit length and the bytes, one after the other (checked when filled).
struct Value {
  ValueKind kind = ValueKind::kUint;
  uint64_t uint_value = 0;
  int64_t int_value = 0;
  double float_value = 0;
  bool bool_value = false;
  std::string text;

  ValueKind element_kind = ValueKind::kUint;
  uint8_t element_bytes = 0;
  uint64_t count = 0;
  std::vector<uint8_t> packed;
};

/// Walks the strings of an array value in order. The views live as long as the value.
class StringArrayReader {
 public:
  explicit StringArrayReader(const Value& value) : rest_(value.packed.data()), left_(value.count) {}
  bool next(std::string_view* out);

 private:
  const uint8_t* rest_;
  uint64_t left_;
};

/// The keys of a model. Not thread-safe while being filled; const use is.
/// Every getter returns kModelFile with the key's name where the value has another kind or range than asked.
class Metadata {
 public:
  void set(std::string key, Value value) { values_[std::move(key)] = std::move(value); }
  /// Parses `text` as the kind that `key` has, or, for a new key, as int, float, bool or string, whichever
  /// fits first ("str:...", "int:...", "float:...", "bool:..." force one). Source: `--override key=value`.
  Status set_override(const std::string& key, std::string_view text);

  const Value* find(std::string_view key) const;
  bool has(std::string_view key) const { return find(key) != nullptr; }
  const std::map<std::string, Value, std::less<>>& values() const { return values_; }
  /// Frees an array's bytes; the key stays with its count.
  void drop_array(std::string_view key);

  /// The required forms fail with "key 'x' is missing".
  Result<uint64_t> uint_required(std::string_view key) const;
  Result<std::string> string_required(std::string_view key) const;
  Result<uint64_t> uint_or(std::string_view key, uint64_t fallback) const;
  Result<double> float_or(std::string_view key, double fallback) const;
  Result<bool> bool_or(std::string_view key, bool fallback) const;
  Result<std::string> string_or(std::string_view key, std::string fallback) const;
  /// An array of numbers (or one number, which gives one element); empty if the key is missing.
  Result<std::vector<double>> numbers(std::string_view key) const;
  /// The string array `key`, or null if it is missing.
  Result<const Value*> string_array(std::string_view key) const;

 private:
  std::map<std::string, Value, std::less<>> values_;
};

}  // namespace ganglion::base

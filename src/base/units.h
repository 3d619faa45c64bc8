// Byte sizes as people write and read them, and checked unsigned arithmetic for sizes from files.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"

namespace ganglion::base {

inline constexpr uint64_t kKiB = 1024;
inline constexpr uint64_t kMiB = 1024 * kKiB;
inline constexpr uint64_t kGiB = 1024 * kMiB;

/// Parses "4096", "64M", "1.5G" (binary), "4GB", "600MB" (decimal), "4GiB". Case does not matter.
/// Errors: kInvalidArgument for anything else, negative, or above 2^63.
Result<uint64_t> parse_bytes(std::string_view text);

/// "512 B", "93.8 MiB", "2.60 GiB": three significant digits, binary units.
std::string format_bytes(uint64_t bytes);

/// printf into a std::string, for messages.
[[gnu::format(printf, 1, 2)]] std::string format(const char* pattern, ...);

constexpr uint64_t round_up(uint64_t value, uint64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}
constexpr uint64_t round_down(uint64_t value, uint64_t multiple) {
  return value / multiple * multiple;
}
constexpr uint64_t ceil_div(uint64_t value, uint64_t divisor) {
  return (value + divisor - 1) / divisor;
}

/// *out = a * b, or false where that does not fit 64 bits.
[[nodiscard]] inline bool try_mul(uint64_t a, uint64_t b, uint64_t* out) {
  return !__builtin_mul_overflow(a, b, out);
}
[[nodiscard]] inline bool try_add(uint64_t a, uint64_t b, uint64_t* out) {
  return !__builtin_add_overflow(a, b, out);
}

}  // namespace ganglion::base

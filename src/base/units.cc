#include "base/units.h"

#include <cctype>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>

namespace ganglion::base {

namespace {

// Multiplier of a unit suffix, or 0 if it is none. A bare letter is binary, "KB" is decimal.
uint64_t unit_of(const std::string& suffix) {
  if (suffix.empty() || suffix == "b") return 1;
  uint64_t binary = 0;
  uint64_t decimal = 0;
  switch (suffix[0]) {
    case 'k':
      binary = kKiB, decimal = 1000;
      break;
    case 'm':
      binary = kMiB, decimal = 1000'000;
      break;
    case 'g':
      binary = kGiB, decimal = 1000'000'000;
      break;
    case 't':
      binary = kGiB * 1024, decimal = 1000'000'000'000;
      break;
    default:
      return 0;
  }
  const std::string rest = suffix.substr(1);
  if (rest.empty() || rest == "ib") return binary;
  return rest == "b" ? decimal : 0;
}

}  // namespace

Result<uint64_t> parse_bytes(std::string_view text) {
  const std::string owned(text);
  char* end = nullptr;
  const bool starts_well =
      !owned.empty() && (std::isdigit(static_cast<unsigned char>(owned[0])) != 0 || owned[0] == '.');
  const double number = starts_well ? std::strtod(owned.c_str(), &end) : -1;
  std::string suffix;
  for (const char* p = end; p != nullptr && *p != 0; ++p) {
    if (*p != ' ') suffix += static_cast<char>(std::tolower(static_cast<unsigned char>(*p)));
  }
  const uint64_t unit = unit_of(suffix);
  const double bytes = number * static_cast<double>(unit);
  if (!starts_well || unit == 0 || !(bytes >= 0 && bytes < 9.2e18)) {
    return Status(Code::kInvalidArgument,
                  "'" + owned + "' is not a size - write 512M, 4G, 1.5GiB or 4000000000");
  }
  return static_cast<uint64_t>(bytes);
}

std::string format_bytes(uint64_t bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < std::size(kUnits)) {
    value /= 1024;
    ++unit;
  }
  const int decimals = unit == 0 || value >= 100 ? 0 : value >= 10 ? 1 : 2;
  return format("%.*f %s", decimals, value, kUnits[unit]);
}

std::string format(const char* pattern, ...) {
  va_list args;
  va_start(args, pattern);
  va_list again;
  va_copy(again, args);
  const int length = std::vsnprintf(nullptr, 0, pattern, args);
  va_end(args);
  std::string out(static_cast<size_t>(length > 0 ? length : 0), '\0');
  if (length > 0) std::vsnprintf(out.data(), out.size() + 1, pattern, again);
  va_end(again);
  return out;
}

}  // namespace ganglion::base

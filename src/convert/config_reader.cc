#include "convert/config_reader.h"

#include <cmath>

#include "base/units.h"

namespace ganglion::convert {

using base::Code;

uint64_t ConfigReader::count(std::string_view field, uint64_t limit) {
  uint64_t value = 0;
  if (config_[field].try_uint(limit, &value) && value > 0) return value;
  fail(Code::kModelFile, base::format("'%s' is %s, expected 1 to %llu", std::string(field).c_str(),
                                      config_.has(field) ? "no such number" : "missing",
                                      static_cast<unsigned long long>(limit)));
  return 1;
}

uint64_t ConfigReader::count_or(std::string_view field, uint64_t fallback, uint64_t limit) {
  return config_.has(field) ? count(field, limit) : fallback;
}

double ConfigReader::positive_or(const format::Json& value, std::string_view field, double fallback) {
  if (value.is_null()) return fallback;
  const double number = value.number_or(-1);
  if (number > 0 && std::isfinite(number)) return number;
  fail(Code::kModelFile, "'" + std::string(field) + "' is not a positive number");
  return fallback;
}

void ConfigReader::expect_text(std::string_view field, std::string_view allowed) {
  const format::Json& value = config_[field];
  if (value.is_null() || value.text() == allowed) return;
  fail(Code::kUnsupported, "'" + std::string(field) + "' is '" + value.text().substr(0, 40) +
                               "', expected '" + std::string(allowed) + "'");
}

void ConfigReader::expect_flag(std::string_view field, bool allowed) {
  if (config_[field].bool_or(allowed) == allowed) return;
  fail(Code::kUnsupported,
       "'" + std::string(field) + "' is " + (allowed ? "false" : "true") + ", which is not supported");
}

void ConfigReader::fail(Code code, const std::string& what) {
  if (status_.ok()) status_ = base::Status(code, "'" + path_ + "': " + what);
}

}  // namespace ganglion::convert

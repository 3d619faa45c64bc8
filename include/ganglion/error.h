// Values for operating errors: Status and Result<T>. Nothing here prints or exits.
#pragma once

#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace ganglion {

/// Kinds of operating errors. Each maps to one exit code and one HTTP status.
enum class Code {
  kOk,
  kInvalidArgument,  ///< The caller (a flag, a request) asked for something that makes no sense.
  kNotFound,         ///< A named thing (file, tensor, key) is not there.
  kModelFile,        ///< The model file is damaged, incomplete or contradicts itself.
  kUnsupported,      ///< Well-formed, but nothing here can do it (type, architecture, template).
  kIo,               ///< The system failed to read or write.
  kResources,        ///< Does not fit the memory budget or another limit.
  kContextOverflow,  ///< More positions asked for than the context holds.
  kCancelled,        ///< Stopped on request.
  kPoisoned,         ///< The session failed earlier and was not reset.
  kDevice,           ///< An accelerator failed, timed out or is lost; the processor can go on without.
  kInternal,         ///< A promise of our own was broken.
};

/// Short lower-case name of a code, for logs and tests.
std::string_view code_name(Code code);

/// Outcome of an operation without a value. Cheap to copy when ok.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Code code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == Code::kOk; }
  Code code() const { return code_; }
  const std::string& message() const { return message_; }

  /// The same failure with "context: " before its message; ok stays ok.
  Status with_context(std::string_view context) const;

 private:
  Code code_ = Code::kOk;
  std::string message_;
};

inline Status ok_status() {
  return Status();
}

/// A value or the Status that explains why there is none.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}         // NOLINT(google-explicit-constructor)
  Result(Status status) : status_(std::move(status)) {  // NOLINT(google-explicit-constructor)
    if (status_.ok()) std::abort();                     // A Result without a value must say why.
  }

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }
  T& value() {
    if (!value_.has_value()) std::abort();  // The caller has to ask ok() first.
    return *value_;
  }
  const T& value() const {
    if (!value_.has_value()) std::abort();  // The caller has to ask ok() first.
    return *value_;
  }
  T take() { return std::move(value()); }

 private:
  Status status_;
  std::optional<T> value_;
};

/// Exit code of a program that ends with this status: 0 ok, 1 runtime, 2 usage, 3 model file, 4 resources,
/// 130 interrupted.
int exit_code(Code code);

}  // namespace ganglion

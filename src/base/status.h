// Values for operating errors: Status, Result<T> and the propagation macros.
//
// Nothing here prints or exits. Every layer that knows more about a failure prepends it with `with_context`.
// Called by every room.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/check.h"

namespace ganglion::base {

/// Kinds of operating errors. Each maps to one exit code and one HTTP status (include/ganglion/error.h).
enum class Code {
  kOk,
  kInvalidArgument,   ///< The caller (a flag, a request) asked for something that makes no sense.
  kNotFound,          ///< A named thing (file, tensor, key) is not there.
  kModelFile,         ///< The model file is damaged, incomplete or contradicts itself.
  kUnsupported,       ///< Well-formed, but nothing here can do it (type, architecture, template).
  kIo,                ///< The system failed to read or write.
  kResources,         ///< Does not fit the memory budget or another limit.
  kContextOverflow,   ///< More positions asked for than the context holds.
  kCancelled,         ///< Stopped on request.
  kPoisoned,          ///< The session failed earlier and was not reset.
  kInternal,          ///< A promise of our own was broken.
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

inline Status ok_status() { return Status(); }

/// A value or the Status that explains why there is none.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}  // NOLINT(google-explicit-constructor)
  Result(Status status) : status_(std::move(status)) {  // NOLINT(google-explicit-constructor)
    GANGLION_CHECK(!status_.ok());
  }

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }
  T& value() {
    GANGLION_CHECK(value_.has_value());
    return *value_;
  }
  const T& value() const {
    GANGLION_CHECK(value_.has_value());
    return *value_;
  }
  T take() { return std::move(value()); }

 private:
  Status status_;
  std::optional<T> value_;
};

}  // namespace ganglion::base

#define GANGLION_CONCAT_INNER(a, b) a##b
#define GANGLION_CONCAT(a, b) GANGLION_CONCAT_INNER(a, b)

/// Returns the Status of `expr` from the enclosing function if it is not ok.
#define GANGLION_RETURN_IF_ERROR(expr)                             \
  do {                                                             \
    ::ganglion::base::Status status_of_expr_ = (expr);             \
    if (!status_of_expr_.ok()) return status_of_expr_;             \
  } while (false)

/// Declares `decl` from the Result of `expr`, or returns its Status from the enclosing function.
#define GANGLION_ASSIGN_OR_RETURN(decl, expr) \
  GANGLION_ASSIGN_OR_RETURN_INNER(GANGLION_CONCAT(result_, __LINE__), decl, expr)
#define GANGLION_ASSIGN_OR_RETURN_INNER(tmp, decl, expr) \
  auto tmp = (expr);                                     \
  if (!tmp.ok()) return tmp.status();                    \
  decl = tmp.take()

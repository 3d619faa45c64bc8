// Status and Result<T> of the public error.h under the names that rooms use, and the propagation macros.
// Every layer that knows more about a failure prepends it with `with_context`. Called by every room.
#pragma once

#include "base/check.h"
#include "ganglion/error.h"

namespace ganglion::base {

using ganglion::Code;
using ganglion::code_name;
using ganglion::ok_status;
using ganglion::Result;
using ganglion::Status;

}  // namespace ganglion::base

#define GANGLION_CONCAT_INNER(a, b) a##b
#define GANGLION_CONCAT(a, b) GANGLION_CONCAT_INNER(a, b)

/// Returns the Status of `expr` from the enclosing function if it is not ok.
#define GANGLION_RETURN_IF_ERROR(expr)                 \
  do {                                                 \
    ::ganglion::base::Status status_of_expr_ = (expr); \
    if (!status_of_expr_.ok()) return status_of_expr_; \
  } while (false)

/// Declares `decl` from the Result of `expr`, or returns its Status from the enclosing function.
#define GANGLION_ASSIGN_OR_RETURN(decl, expr) \
  GANGLION_ASSIGN_OR_RETURN_INNER(GANGLION_CONCAT(result_, __LINE__), decl, expr)
#define GANGLION_ASSIGN_OR_RETURN_INNER(tmp, decl, expr) \
  auto tmp = (expr);                                     \
  if (!tmp.ok()) return tmp.status();                    \
  decl = tmp.take()

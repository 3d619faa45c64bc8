// llama.cpp's GBNF as the Lark dialect that llguidance takes.
#pragma once

#include <string>

#include "ganglion/error.h"

namespace ganglion::server {

/// A grammar with "::=" is taken for GBNF and rewritten; anything else is returned as it is.
/// Errors: kInvalidArgument, with the line.
Result<std::string> lark_of(const std::string& grammar);

}  // namespace ganglion::server

// Version and build facts.
#pragma once

#include <string>

namespace ganglion {

/// "0.1.0"
const char* version();
/// One line: version, compiler, optional parts built in, kernel tables of this build.
std::string build_facts();

}  // namespace ganglion

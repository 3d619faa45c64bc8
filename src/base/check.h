// Assertions for bugs of our own. CHECK is always on and stands at room borders, DCHECK inside them.
// User input must reach neither: it is answered with a Status.
#pragma once

namespace ganglion::base {

/// Prints the failed condition to stderr and aborts.
[[noreturn]] void check_failed(const char* condition, const char* file, int line);

}  // namespace ganglion::base

#define GANGLION_CHECK(condition)                                                     \
  do {                                                                                \
    if (!(condition)) ::ganglion::base::check_failed(#condition, __FILE__, __LINE__); \
  } while (false)

#ifdef NDEBUG
#define GANGLION_DCHECK(condition) \
  do {                             \
    if (false && (condition)) {    \
    }                              \
  } while (false)
#else
#define GANGLION_DCHECK(condition) GANGLION_CHECK(condition)
#endif

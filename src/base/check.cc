#include "base/check.h"

#include <cstdio>
#include <cstdlib>

namespace ganglion::base {

void check_failed(const char* condition, const char* file, int line) {
  std::fprintf(stderr, "ganglion: bug: %s is false at %s:%d\n", condition, file, line);
  std::abort();
}

}  // namespace ganglion::base

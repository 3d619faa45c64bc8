// A preloaded library that makes reads go wrong, for end-to-end tests of the pread pool. GANGLION_FAULT is
// one of
//   short        every pread returns at most 1,000 bytes (buffered) or one 4 KiB unit (direct)
//   eio:N        the Nth large pread and all after it fail with EIO
//   eio-once:N   only the Nth fails
//   eio-if:PATH  large preads fail with EIO while a file of that name exists
//   einval       direct preads fail with EINVAL (a file system that refuses them at read time)
//   delay:US     each pread takes US microseconds longer
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>

namespace {

using PreadFn = ssize_t (*)(int, void*, size_t, off_t);
std::atomic<long> g_count{0};

// Weights are read in larger pieces than headers and libraries.
constexpr size_t kLargeBytes = 4096;

ssize_t faulty_pread(PreadFn real, int fd, void* out, size_t count, off_t offset) {
  const char* fault = std::getenv("GANGLION_FAULT");
  const bool direct = (::fcntl(fd, F_GETFL) & O_DIRECT) != 0;
  if (fault == nullptr || count < kLargeBytes) return real(fd, out, count, offset);
  const char* colon = std::strchr(fault, ':');
  const long number = colon == nullptr ? 0 : std::atol(colon + 1);
  if (std::strncmp(fault, "short", 5) == 0) count = direct ? 4096 : 1000;
  if (std::strncmp(fault, "einval", 6) == 0 && direct) {
    errno = EINVAL;
    return -1;
  }
  if (std::strncmp(fault, "delay", 5) == 0) ::usleep(static_cast<useconds_t>(number));
  if (std::strncmp(fault, "eio-if", 6) == 0) {
    if (::access(colon + 1, F_OK) != 0) return real(fd, out, count, offset);
    errno = EIO;
    return -1;
  }
  const long nth = ++g_count;
  const bool once = std::strncmp(fault, "eio-once", 8) == 0;
  if (std::strncmp(fault, "eio", 3) == 0 && (once ? nth == number : nth >= number)) {
    errno = EIO;
    return -1;
  }
  return real(fd, out, count, offset);
}

}  // namespace

extern "C" {

ssize_t pread(int fd, void* out, size_t count, off_t offset) {
  static const auto real = reinterpret_cast<PreadFn>(::dlsym(RTLD_NEXT, "pread"));
  return faulty_pread(real, fd, out, count, offset);
}

ssize_t pread64(int fd, void* out, size_t count, off_t offset) {
  static const auto real = reinterpret_cast<PreadFn>(::dlsym(RTLD_NEXT, "pread64"));
  return faulty_pread(real, fd, out, count, offset);
}

// The page cache is never asked, so that every weight comes through pread.
ssize_t preadv2(int, const iovec*, int, off_t, int) {
  errno = EAGAIN;
  return -1;
}
}

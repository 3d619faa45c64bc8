#include "platform/file.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/units.h"

namespace ganglion::platform {

using base::Code;
using base::Result;
using base::Status;

namespace {

Status system_error(const std::string& what, const std::string& path, int error) {
  return Status(error == ENOENT || error == ENOTDIR ? Code::kNotFound : Code::kIo,
                what + " '" + path + "': " + std::strerror(error));
}

}  // namespace

Result<File> File::open(const std::string& path) {
  File file;
  file.path_ = path;
  file.fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // A pipe must not make it wait.
  if (file.fd_ < 0) return system_error("cannot open", path, errno);
  struct stat info = {};
  if (::fstat(file.fd_, &info) != 0) return system_error("cannot stat", path, errno);
  if (!S_ISREG(info.st_mode)) {
    return Status(Code::kIo, "cannot read '" + path + "': it is " +
                                 (S_ISDIR(info.st_mode) ? "a directory" : "not a regular file"));
  }
  file.size_ = static_cast<uint64_t>(info.st_size);
  // Our own reads are large and planned: the kernel's read-ahead would only fill the page cache.
  ::posix_fadvise(file.fd_, 0, 0, POSIX_FADV_RANDOM);
  file.direct_fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_DIRECT);
  return file;
}

File::File(File&& other) noexcept {
  *this = std::move(other);
}

File& File::operator=(File&& other) noexcept {
  if (this != &other) {
    close_all();
    path_ = std::move(other.path_);
    fd_ = std::exchange(other.fd_, -1);
    direct_fd_ = std::exchange(other.direct_fd_, -1);
    size_ = other.size_;
  }
  return *this;
}

File::~File() {
  close_all();
}

void File::close_all() {
  if (fd_ >= 0) ::close(fd_);
  drop_direct();
  fd_ = -1;
}

void File::drop_direct() {
  if (direct_fd_ >= 0) ::close(direct_fd_);
  direct_fd_ = -1;
}

Status File::read_exact(uint64_t offset, std::span<uint8_t> out) const {
  size_t done = 0;
  while (done < out.size()) {
    const ssize_t got = ::pread(fd_, out.data() + done, out.size() - done, static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      return system_error(base::format("cannot read %zu bytes at offset %llu of", out.size() - done,
                                       static_cast<unsigned long long>(offset + done)),
                          path_, errno);
    }
    if (got == 0) {
      return Status(Code::kModelFile,
                    base::format("'%s' ends at byte %llu, expected at least %llu - the file is truncated",
                                 path_.c_str(), static_cast<unsigned long long>(offset + done),
                                 static_cast<unsigned long long>(offset + out.size())));
    }
    done += static_cast<size_t>(got);
  }
  return base::ok_status();
}

bool File::is_cached(uint64_t offset, uint64_t length) const {
  constexpr long kCachestat = 451;  // Linux 6.5, the same number on every architecture.
  struct {
    uint64_t offset, length;
  } range = {offset, length};
  struct {
    uint64_t cached, dirty, writeback, evicted, recently_evicted;
  } pages = {};
  if (::syscall(kCachestat, fd_, &range, &pages, 0) == 0) {
    const auto page = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
    return pages.cached >= (offset + length - 1) / page - offset / page + 1;
  }
  // Not there or forbidden: a byte costs at most one page.
  uint8_t byte = 0;
  iovec part = {&byte, 1};
  return ::preadv2(fd_, &part, 1, static_cast<off_t>(offset), RWF_NOWAIT) == 1;
}

Status write_file_atomically(const std::string& path, std::span<const uint8_t> bytes) {
  const std::string temporary = path + ".tmp" + std::to_string(::getpid());
  const int fd = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) return system_error("cannot create", temporary, errno);
  size_t done = 0;
  int error = 0;
  while (done < bytes.size() && error == 0) {
    const ssize_t put = ::write(fd, bytes.data() + done, bytes.size() - done);
    if (put < 0 && errno != EINTR) error = errno;
    if (put > 0) done += static_cast<size_t>(put);
  }
  if (::close(fd) != 0 && error == 0) error = errno;
  if (error == 0 && ::rename(temporary.c_str(), path.c_str()) != 0) error = errno;
  if (error == 0) return base::ok_status();
  ::unlink(temporary.c_str());
  return system_error("cannot write", path, error);
}

Result<std::string> read_text_file(const std::string& path, uint64_t limit_bytes) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return system_error("cannot open", path, errno);
  std::string text;
  char chunk[65536];
  ssize_t got = 0;
  while ((got = ::read(fd, chunk, sizeof chunk)) != 0) {
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 || text.size() + static_cast<size_t>(got) > limit_bytes) break;
    text.append(chunk, static_cast<size_t>(got));
  }
  const int error = errno;
  ::close(fd);
  if (got < 0) return system_error("cannot read", path, error);
  if (got > 0) {
    return Status(Code::kInvalidArgument, "'" + path + "' is larger than " + base::format_bytes(limit_bytes));
  }
  return text;
}

Result<std::vector<std::string>> list_directory(const std::string& path) {
  DIR* directory = ::opendir(path.c_str());
  if (directory == nullptr) return system_error("cannot list", path, errno);
  std::vector<std::string> names;
  while (const dirent* entry = ::readdir(directory)) names.emplace_back(entry->d_name);
  ::closedir(directory);
  std::sort(names.begin(), names.end());
  return names;
}

bool is_directory(const std::string& path) {
  struct stat info = {};
  return ::stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
}

}  // namespace ganglion::platform

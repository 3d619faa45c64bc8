// Files opened for reading weights: direct (O_DIRECT) where the file system has it, else buffered.
// Reads only whole spans or fails; scheduling and alignment of many reads is async_io's work.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"

namespace ganglion::platform {

/// An open read-only file. Movable, closes itself. Thread-safe for reads.
class File {
 public:
  /// Opens `path`. Errors: kNotFound, kIo with the system's reason; kIo for a directory.
  static base::Result<File> open(const std::string& path);

  File(File&& other) noexcept;
  File& operator=(File&& other) noexcept;
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  ~File();

  const std::string& path() const { return path_; }
  uint64_t size() const { return size_; }       ///< When opened.
  int fd() const { return fd_; }                ///< Buffered descriptor.
  int direct_fd() const { return direct_fd_; }  ///< O_DIRECT descriptor, or -1.
  /// Gives up direct reads (the file system refused one).
  void drop_direct();

  /// Fills `out` from `offset`. Errors: kModelFile if the file ends earlier, kIo otherwise.
  base::Status read_exact(uint64_t offset, std::span<uint8_t> out) const;

  /// Whether all pages of a range (of at least a byte) lie in the page cache. Asks before reading: since
  /// Linux 5.17 even a read that must not wait has the kernel fetch what it does not find.
  bool is_cached(uint64_t offset, uint64_t length) const;

 private:
  File() = default;
  void close_all();

  std::string path_;
  int fd_ = -1;
  int direct_fd_ = -1;
  uint64_t size_ = 0;
};

/// Writes `bytes` to `path` through a temporary file and an atomic rename.
base::Status write_file_atomically(const std::string& path, std::span<const uint8_t> bytes);

/// Whole small file as text (configuration, prompts). Errors: kNotFound, kIo; kInvalidArgument over
/// `limit_bytes`.
base::Result<std::string> read_text_file(const std::string& path, uint64_t limit_bytes);

/// Names in a directory, sorted. Errors: kNotFound, kIo.
base::Result<std::vector<std::string>> list_directory(const std::string& path);
bool is_directory(const std::string& path);

}  // namespace ganglion::platform

#include "async_io/read_step.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/units.h"

namespace ganglion::async_io {

using base::Code;
using base::Status;

namespace {

uint64_t begin_of(const ReadOp& op) {
  return op.offset / kIoAlignment * kIoAlignment;
}
uint64_t needed_from_begin(const ReadOp& op) {
  return op.offset - begin_of(op) + op.needed;
}

// A direct read that came up short continues from the last whole unit.
uint64_t resumed_at(const ReadOp& op) {
  return op.direct ? base::round_down(op.progress, kIoAlignment) : op.progress;
}

Status describe(const ReadOp& op, const char* what) {
  return Status(Code::kIo, base::format("cannot read %llu bytes at offset %llu of '%s' (%.*s): %s",
                                        static_cast<unsigned long long>(op.needed),
                                        static_cast<unsigned long long>(op.offset), op.file->path().c_str(),
                                        static_cast<int>(op.label.size()), op.label.data(), what));
}

Status truncated(const ReadOp& op) {
  uint64_t end = begin_of(op) + op.progress;
  struct stat info = {};
  // Where nothing at all came, the end lies further ahead.
  if (op.progress == 0 && ::fstat(op.file->fd(), &info) == 0) {
    end = std::min(end, static_cast<uint64_t>(info.st_size));
  }
  return Status(
      Code::kModelFile,
      base::format("'%s' ends at byte %llu, but %.*s needs bytes up to %llu - the file is truncated",
                   op.file->path().c_str(), static_cast<unsigned long long>(end),
                   static_cast<int>(op.label.size()), op.label.data(),
                   static_cast<unsigned long long>(op.offset + op.needed)));
}

NextStep finish(ReadOp* op, Status status) {
  op->status = std::move(status);
  // Buffered reads leave pages behind that would count against a memory limit.
  if (!op->direct) {
    ::posix_fadvise(op->file->fd(), static_cast<off_t>(begin_of(*op)),
                    static_cast<off_t>(widened_bytes(op->offset, op->needed)), POSIX_FADV_DONTNEED);
  }
  return NextStep::kFinished;
}

}  // namespace

void begin(ReadOp* op, bool allow_direct) {
  op->progress = 0;
  op->attempts = 0;
  op->interruptions = 0;
  op->read_bytes = 0;
  op->from_page_cache = false;
  op->direct = allow_direct && op->file->direct_fd() >= 0;
}

ReadStep next_read(const ReadOp& op) {
  const uint64_t done = resumed_at(op);
  return {op.direct ? op.file->direct_fd() : op.file->fd(), op.memory + done,
          static_cast<size_t>(widened_bytes(op.offset, op.needed) - done), begin_of(op) + done};
}

NextStep advance(ReadOp* op, int64_t result) {
  if (result < 0) {
    const int error = static_cast<int>(-result);
    if ((error == EINTR || error == EAGAIN) && ++op->interruptions < kMaxInterruptions)
      return NextStep::kAgain;
    if (error == EINTR || error == EAGAIN) {
      return finish(op, describe(*op, base::format("interrupted %d times in a row (%s)", op->interruptions,
                                                   std::strerror(error))
                                          .c_str()));
    }
    if ((error == EINVAL || error == EOPNOTSUPP) && op->direct) {
      op->direct = false;
      return NextStep::kAgainBuffered;
    }
    if (++op->attempts < kMaxAttempts) return NextStep::kAgain;
    return finish(op, describe(*op, std::strerror(error)));
  }
  const uint64_t reached = resumed_at(*op) + static_cast<uint64_t>(result);
  const bool moved = reached > op->progress;
  op->read_bytes += static_cast<uint64_t>(result);
  op->progress = std::max(op->progress, reached);
  if (op->progress >= needed_from_begin(*op)) return finish(op, base::ok_status());
  if (moved) {
    op->interruptions = 0;
    return NextStep::kAgain;
  }
  // Nothing more came: the end of the file, unless the file system only refuses the unaligned rest.
  if (op->direct) {
    op->direct = false;
    return NextStep::kAgain;
  }
  return finish(op, truncated(*op));
}

bool try_read_cached(const platform::File& file, uint64_t offset, std::span<uint8_t> out) {
  if (!file.is_cached(offset, out.size())) return false;
  size_t done = 0;
  while (done < out.size()) {
    iovec part = {out.data() + done, out.size() - done};
    const ssize_t got = ::preadv2(file.fd(), &part, 1, static_cast<off_t>(offset + done), RWF_NOWAIT);
    if (got <= 0) return false;
    done += static_cast<size_t>(got);
  }
  return true;
}

bool read_from_page_cache(ReadOp* op) {
  op->from_page_cache =
      try_read_cached(*op->file, op->offset, {wanted(*op), static_cast<size_t>(op->needed)});
  return op->from_page_cache;
}

}  // namespace ganglion::async_io

#include "async_io/read_step.h"

#include <fcntl.h>
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

uint64_t begin_of(const ReadOp& op) { return op.offset / kIoAlignment * kIoAlignment; }
uint64_t needed_from_begin(const ReadOp& op) { return op.offset - begin_of(op) + op.needed; }

Status describe(const ReadOp& op, const char* what) {
  return Status(Code::kIo, base::format("cannot read %llu bytes at offset %llu of '%s' (%.*s): %s",
                                        static_cast<unsigned long long>(op.needed),
                                        static_cast<unsigned long long>(op.offset), op.file->path().c_str(),
                                        static_cast<int>(op.label.size()), op.label.data(), what));
}

Status truncated(const ReadOp& op) {
  return Status(Code::kModelFile,
                base::format("'%s' ends at byte %llu, but %.*s needs bytes up to %llu - the file is truncated",
                             op.file->path().c_str(), static_cast<unsigned long long>(begin_of(op) + op.progress),
                             static_cast<int>(op.label.size()), op.label.data(),
                             static_cast<unsigned long long>(op.offset + op.needed)));
}

NextStep finish(ReadOp* op, Status status, bool direct) {
  op->status = std::move(status);
  // Buffered reads leave pages behind that would count against a memory limit.
  if (!direct) {
    ::posix_fadvise(op->file->fd(), static_cast<off_t>(begin_of(*op)),
                    static_cast<off_t>(widened_bytes(op->offset, op->needed)), POSIX_FADV_DONTNEED);
  }
  return NextStep::kFinished;
}

}  // namespace

ReadStep next_read(const ReadOp& op, bool direct) {
  // A direct read that came up short continues from the last whole unit.
  const uint64_t done = direct ? base::round_down(op.progress, kIoAlignment) : op.progress;
  return {direct ? op.file->direct_fd() : op.file->fd(), op.memory + done,
          static_cast<size_t>(widened_bytes(op.offset, op.needed) - done), begin_of(op) + done};
}

NextStep advance(ReadOp* op, int64_t result, bool* direct) {
  if (result < 0) {
    const int error = static_cast<int>(-result);
    if (error == EINTR || error == EAGAIN) return NextStep::kAgain;
    if (error == EINVAL && *direct) {
      *direct = false;
      return NextStep::kAgain;
    }
    if (++op->attempts < kMaxAttempts) return NextStep::kAgain;
    return finish(op, describe(*op, std::strerror(error)), *direct);
  }
  const uint64_t start = *direct ? base::round_down(op->progress, kIoAlignment) : op->progress;
  const uint64_t reached = start + static_cast<uint64_t>(result);
  const bool moved = reached > op->progress;
  op->read_bytes += static_cast<uint64_t>(result);
  op->progress = std::max(op->progress, reached);
  if (op->progress >= needed_from_begin(*op)) return finish(op, base::ok_status(), *direct);
  if (moved) return NextStep::kAgain;
  // Nothing more came: the end of the file, unless the file system only refuses the unaligned rest.
  if (*direct) {
    *direct = false;
    return NextStep::kAgain;
  }
  return finish(op, truncated(*op), *direct);
}

bool read_from_page_cache(ReadOp* op) {
  uint64_t done = 0;
  while (done < op->needed) {
    iovec part = {wanted(*op) + done, static_cast<size_t>(op->needed - done)};
    const ssize_t got = ::preadv2(op->file->fd(), &part, 1, static_cast<off_t>(op->offset + done), RWF_NOWAIT);
    if (got <= 0) return false;
    done += static_cast<uint64_t>(got);
  }
  op->from_page_cache = true;
  return true;
}

}  // namespace ganglion::async_io

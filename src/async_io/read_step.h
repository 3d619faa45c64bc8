// What the backends share: how an operation goes on after one system call returned.
#pragma once

#include "async_io/read_queue.h"

namespace ganglion::async_io {

inline constexpr int kMaxAttempts = 3;

enum class NextStep : uint8_t { kFinished, kAgain };

/// The rest of `op` as one system call: descriptor, memory, length and file offset.
struct ReadStep {
  int fd;
  uint8_t* memory;
  size_t length;
  uint64_t offset;
};
ReadStep next_read(const ReadOp& op, bool direct);

/// Takes the result of a read (bytes, or -errno). Continues short reads, retries EINTR/EAGAIN freely and other
/// errors kMaxAttempts times, switches off direct reads (`*direct`) on EINVAL, and fills op->status at the end.
NextStep advance(ReadOp* op, int64_t result, bool* direct);

/// Copies what is wanted from the page cache if all of it is there, without reading from the device.
bool read_from_page_cache(ReadOp* op);

}  // namespace ganglion::async_io

// What the backends share: how an operation goes on after one system call returned.
#pragma once

#include "async_io/read_queue.h"

namespace ganglion::async_io {

inline constexpr int kMaxAttempts = 3;
/// EINTR and EAGAIN in a row, without a byte in between. Signals and busy kernels end long before.
inline constexpr int kMaxInterruptions = 10'000;

/// kAgainBuffered: again, and the file refuses direct reads altogether.
enum class NextStep : uint8_t { kFinished, kAgain, kAgainBuffered };

/// The rest of an operation as one system call: descriptor, memory, length and file offset.
struct ReadStep {
  int fd;
  uint8_t* memory;
  size_t length;
  uint64_t offset;
};

/// Sets the queue's own fields and results to those of an operation that has just been submitted.
void begin(ReadOp* op, bool allow_direct);

ReadStep next_read(const ReadOp& op);

/// Takes the result of next_read() (bytes, or -errno). Continues short reads, retries EINTR/EAGAIN
/// kMaxInterruptions times in a row and other errors kMaxAttempts times, goes on without direct reads
/// (op->direct) where the file refuses one, and fills op->status at the end.
NextStep advance(ReadOp* op, int64_t result);

/// Decides when the page cache is worth asking: after a few misses only now and then.
class PageCacheProbe {
 public:
  bool due(uint64_t operations) const { return misses_ < kMissLimit || operations % kAskEvery == 0; }
  void answered(bool cached) { misses_ = cached ? 0 : misses_ + 1; }

 private:
  static constexpr int kMissLimit = 8;
  static constexpr uint64_t kAskEvery = 256;
  int misses_ = 0;
};

/// Copies what is wanted from the page cache if all of it is there, without reading from the device.
bool read_from_page_cache(ReadOp* op);

}  // namespace ganglion::async_io

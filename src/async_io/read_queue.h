// Asynchronous reads from files into memory that the caller owns. Knows no models and no caches.
//
// A ReadOp is owned by the caller and must stay put from submit() until its `done` has run. Completions are
// queued and run inside poll() on the thread that polls, never inside submit(). Operations of higher priority
// start first where the backend still has a choice.
//
//   idle --submit--> queued --start--> in flight --complete--> (retry: in flight | finished) --poll--> idle
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/status.h"
#include "platform/file.h"

namespace ganglion::async_io {

/// Direct reads start, end and land on multiples of this.
inline constexpr uint64_t kIoAlignment = 4096;

enum class Priority : uint8_t { kUrgent, kNormal, kLookAhead };

/// One read: the bytes [offset, offset + needed) of `file` are wanted.
/// The read is widened to whole kIoAlignment units: `memory` must be aligned to it and hold
/// widened_bytes(offset, needed); the bytes wanted then stand at memory + offset % kIoAlignment.
struct ReadOp {
  const platform::File* file = nullptr;
  uint64_t offset = 0;
  uint64_t needed = 0;
  uint8_t* memory = nullptr;
  Priority priority = Priority::kNormal;
  std::string_view label;  ///< Named in errors, for example the tensor.
  void (*done)(ReadOp* op) = nullptr;
  void* context = nullptr;

  // Set before `done` runs.
  base::Status status;
  uint64_t read_bytes = 0;  ///< From the device; 0 if the page cache had it.
  bool from_page_cache = false;

  // The queue's own.
  uint64_t progress = 0;
  int attempts = 0;
  size_t step_bytes = 0;  ///< Of the system call under way.
  int interruptions = 0;  ///< In a row.
  bool direct = false;    ///< How the system call under way, or the next one, reads.
  ReadOp* next = nullptr;
};

/// Bytes of memory that the widened read covers.
constexpr uint64_t widened_bytes(uint64_t offset, uint64_t needed) {
  const uint64_t begin = offset / kIoAlignment * kIoAlignment;
  return (offset + needed + kIoAlignment - 1) / kIoAlignment * kIoAlignment - begin;
}
inline uint8_t* wanted(const ReadOp& op) {
  return op.memory + op.offset % kIoAlignment;
}

/// Totals since the queue was made.
struct IoStats {
  uint64_t device_bytes = 0;
  uint64_t cached_bytes = 0;
  uint64_t operations = 0;
  uint64_t retries = 0;
  bool direct =
      true;  ///< False once bytes came through the page cache because direct reads are off or refused.
};

/// A queue of reads. submit, poll and stats are called from one thread.
class ReadQueue {
 public:
  /// Waits for what the device is doing; what has not completed by then never does.
  virtual ~ReadQueue() = default;

  /// Never blocks on the device and never fails: failures arrive as the op's status.
  /// Errors an op can get: kModelFile (the file ends early: "truncated"), kIo (after 3 tries, with file,
  /// offset, label).
  virtual void submit(std::span<ReadOp* const> ops) = 0;
  /// Runs the completions that are ready; with `wait`, sleeps until there is at least one (if any op is under
  /// way). Returns how many ran.
  virtual size_t poll(bool wait) = 0;
  /// Operations submitted and not yet completed by poll().
  virtual size_t in_flight() const = 0;
  virtual IoStats stats() const = 0;
  virtual std::string_view name() const = 0;
};

struct QueueOptions {
  bool allow_io_uring = true;  ///< Off: the system call is never made.
  bool allow_direct = true;
  bool allow_page_cache = true;         ///< Off: direct reads always go to the device.
  int pool_threads = 8;                 ///< Of the pread pool.
  unsigned depth = 256;                 ///< Operations in flight on io_uring at most,
  size_t most_bytes = size_t{8} << 20;  ///< and their bytes, but for one read and urgent ones.
};

/// The best queue that this system allows: io_uring, else the pread pool. `note` receives a line that says
/// why io_uring is not used, if so.
std::unique_ptr<ReadQueue> make_read_queue(const QueueOptions& options, std::string* note);
std::unique_ptr<ReadQueue> make_pread_pool(const QueueOptions& options);
/// Null with a reason in `note` where the kernel or build has none.
std::unique_ptr<ReadQueue> make_io_uring(const QueueOptions& options, std::string* note);

/// Fills `out` from the page cache alone, if all of it is there; never touches the device.
[[nodiscard]] bool try_read_cached(const platform::File& file, uint64_t offset, std::span<uint8_t> out);

}  // namespace ganglion::async_io

// A ReadQueue for tests: serves reads from memory or from the real files, on the caller's thread and the same
// way for the same seed. Delays, reorders, shortens, corrupts and fails them, or lets a test complete them
// one by one. It goes through read_step as the real queues do, so that continuing and retrying are the real
// ones.
#pragma once

#include <functional>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "async_io/read_queue.h"

namespace ganglion::async_io {

/// Who says when a read completes.
enum class Delivery : uint8_t {
  kAtOnce,  ///< The next poll() completes everything, in the order of submission.
  kRandom,  ///< Each poll() moves some reads on by some system calls, in any order.
  kManual,  ///< complete() alone; a poll that must wait asks `on_wait`, or else completes the oldest read.
};

struct FakeDeviceOptions {
  uint64_t seed = 1;
  Delivery delivery = Delivery::kAtOnce;
  bool allow_direct = true;
  /// Of 100 system calls, how many return only a part of what was asked, and how many are interrupted.
  unsigned short_percent = 0;
  unsigned interrupted_percent = 0;
};

/// A kind of trouble for system calls that touch bytes [begin, end) of any file.
struct Fault {
  enum class Kind : uint8_t {
    kError,         ///< Fails with `error`.
    kRefuseDirect,  ///< Direct calls fail with EINVAL.
    kShort,         ///< At most half of it arrives (one byte at least).
    kCorrupt,       ///< Byte `begin` arrives inverted.
    kEnd,           ///< The file ends at byte `begin`.
  };
  Kind kind = Kind::kError;
  uint64_t begin = 0;
  uint64_t end = UINT64_MAX;
  int error = 5;   ///< EIO.
  int times = -1;  ///< How many calls it hits; -1: all.
};

/// Not thread-safe.
class FakeDevice final : public ReadQueue {
 public:
  explicit FakeDevice(const FakeDeviceOptions& options) : options_(options), random_(options.seed) {
    stats_.direct = options.allow_direct;
  }

  /// Serves the file with this path from `bytes` instead of reading it.
  void set_contents(const std::string& path, std::vector<uint8_t> bytes) {
    contents_[path] = std::move(bytes);
  }
  void add_fault(const Fault& fault) { faults_.push_back(fault); }
  void clear_faults() { faults_.clear(); }

  // Manual delivery.
  size_t pending() const { return pending_.size(); }
  const ReadOp& pending_op(size_t index) const { return *pending_[index]; }
  /// Brings a pending read to its end; its completion runs in the next poll().
  void complete(size_t index);
  std::function<void()> on_wait;

  /// Offsets of all operations submitted, in order.
  const std::vector<uint64_t>& submitted_offsets() const { return submitted_; }
  void forget_submitted() { submitted_.clear(); }
  uint64_t system_calls() const { return system_calls_; }

  void submit(std::span<ReadOp* const> ops) override;
  size_t poll(bool wait) override;
  size_t in_flight() const override { return pending_.size() + done_.size(); }
  IoStats stats() const override { return stats_; }
  std::string_view name() const override { return "fake device"; }

 private:
  bool percent(unsigned of_hundred) { return random_() % 100 < of_hundred; }
  void deliver(bool wait);
  bool turn(size_t index);
  int64_t system_call(const ReadOp& op);
  int64_t read_bytes(const ReadOp& op, uint8_t* memory, size_t length, uint64_t offset,
                     uint64_t file_end) const;

  FakeDeviceOptions options_;
  std::mt19937_64 random_;
  std::map<std::string, std::vector<uint8_t>> contents_;
  std::vector<Fault> faults_;
  std::vector<ReadOp*> pending_;
  std::vector<ReadOp*> done_;
  std::vector<uint64_t> submitted_;
  uint64_t system_calls_ = 0;
  IoStats stats_;
};

}  // namespace ganglion::async_io

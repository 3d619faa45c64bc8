#include "async_io/testing/fake_device.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "async_io/read_step.h"
#include "base/check.h"

namespace ganglion::async_io {

namespace {
// What stands in the memory of a read that has not completed: computing on it shows.
constexpr uint8_t kPoison = 0xDB;
}  // namespace

void FakeDevice::submit(std::span<ReadOp* const> ops) {
  for (ReadOp* op : ops) {
    GANGLION_CHECK(std::find(pending_.begin(), pending_.end(), op) == pending_.end());
    GANGLION_CHECK(reinterpret_cast<uintptr_t>(op->memory) % kIoAlignment == 0);
    // The file system of the test may lack direct reads; the device has them.
    begin(op, options_.allow_direct);
    op->direct = options_.allow_direct;
    std::memset(op->memory, kPoison, widened_bytes(op->offset, op->needed));
    submitted_.push_back(op->offset);
    ++stats_.operations;
    pending_.push_back(op);
  }
}

size_t FakeDevice::poll(bool wait) {
  if (in_flight() == 0) return 0;
  deliver(wait && done_.empty());
  std::vector<ReadOp*> ready;
  std::swap(ready, done_);
  for (ReadOp* op : ready) op->done(op);
  return ready.size();
}

void FakeDevice::deliver(bool wait) {
  switch (options_.delivery) {
    case Delivery::kAtOnce:
      while (!pending_.empty()) complete(0);
      return;
    case Delivery::kRandom:
      for (size_t turns = random_() % (2 * pending_.size() + 1); turns > 0 && !pending_.empty(); --turns) {
        turn(random_() % pending_.size());
      }
      while (wait && done_.empty()) turn(random_() % pending_.size());
      return;
    case Delivery::kManual:
      if (wait && on_wait != nullptr) on_wait();
      if (wait && done_.empty()) complete(0);
      return;
  }
}

void FakeDevice::complete(size_t index) {
  while (!turn(index)) {
  }
}

// One system call for a pending operation; true if that was its last.
bool FakeDevice::turn(size_t index) {
  ReadOp* op = pending_[index];
  if (advance(op, system_call(*op)) != NextStep::kFinished) return false;
  stats_.device_bytes += op->read_bytes;
  stats_.retries += static_cast<uint64_t>(op->attempts);
  if (!op->direct && op->status.ok()) stats_.direct = false;
  pending_.erase(pending_.begin() + static_cast<ptrdiff_t>(index));
  done_.push_back(op);
  return true;
}

int64_t FakeDevice::system_call(const ReadOp& op) {
  ++system_calls_;
  const ReadStep step = next_read(op);
  if (op.direct) GANGLION_CHECK(step.offset % kIoAlignment == 0 && step.length % kIoAlignment == 0);
  if (percent(options_.interrupted_percent)) return random_() % 2 == 0 ? -EINTR : -EAGAIN;
  size_t length = step.length;
  // Direct reads come up short only at whole units, but for the end of the file.
  if (percent(options_.short_percent)) length = 1 + random_() % length;
  uint64_t file_end = UINT64_MAX;
  uint64_t corrupt_at = UINT64_MAX;
  for (Fault& fault : faults_) {
    const bool hit = step.offset < fault.end && step.offset + step.length > fault.begin;
    if (!hit && fault.kind != Fault::Kind::kEnd) continue;
    if (fault.times == 0 || (fault.kind == Fault::Kind::kRefuseDirect && !op.direct)) continue;
    if (fault.times > 0) --fault.times;
    if (fault.kind == Fault::Kind::kError) return -fault.error;
    if (fault.kind == Fault::Kind::kRefuseDirect) return -EINVAL;
    if (fault.kind == Fault::Kind::kShort) length = std::max<size_t>(1, length / 2);
    if (fault.kind == Fault::Kind::kCorrupt && fault.begin >= step.offset) corrupt_at = fault.begin;
    if (fault.kind == Fault::Kind::kEnd) file_end = std::min(file_end, fault.begin);
  }
  const int64_t got = read_bytes(op, step.memory, length, step.offset, file_end);
  if (corrupt_at - step.offset < static_cast<uint64_t>(std::max<int64_t>(0, got))) {
    step.memory[corrupt_at - step.offset] = static_cast<uint8_t>(~step.memory[corrupt_at - step.offset]);
  }
  return got;
}

int64_t FakeDevice::read_bytes(const ReadOp& op, uint8_t* memory, size_t length, uint64_t offset,
                               uint64_t file_end) const {
  const auto contents = contents_.find(op.file->path());
  if (contents == contents_.end()) {
    const uint64_t most = file_end - std::min(file_end, offset);
    const ssize_t got =
        ::pread(op.file->fd(), memory, std::min<uint64_t>(length, most), static_cast<off_t>(offset));
    return got < 0 ? -errno : got;
  }
  const uint64_t size = std::min<uint64_t>(file_end, contents->second.size());
  const uint64_t count = std::min<uint64_t>(length, size - std::min(size, offset));
  if (count > 0) std::memcpy(memory, contents->second.data() + offset, count);
  return static_cast<int64_t>(count);
}

}  // namespace ganglion::async_io

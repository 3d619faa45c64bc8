// Reads through io_uring (liburing). Not compiled on Android, whose seccomp filter kills the process at the
// first call; not used where a container forbids it.
#include "async_io/read_step.h"

#if GANGLION_HAVE_LIBURING && !defined(__ANDROID__)

#include <liburing.h>

#include <cerrno>
#include <cstring>

#include "async_io/op_list.h"
#include "base/check.h"

namespace ganglion::async_io {

namespace {

constexpr size_t kFewReads = 1;

/// Single-threaded: everything happens in submit() and poll() on the caller's thread.
class IoUringQueue final : public ReadQueue {
 public:
  explicit IoUringQueue(const QueueOptions& options)
      : depth_(options.depth),
        most_bytes_(options.most_bytes),
        allow_page_cache_(options.allow_page_cache),
        direct_(options.allow_direct) {
    stats_.direct = direct_;
  }

  ~IoUringQueue() override {
    // The kernel may still write into the callers' memory: wait for what is in the ring.
    while (in_ring_ > 0 && wait_for_one()) {
      for (io_uring_cqe* cqe = nullptr; io_uring_peek_cqe(&ring_, &cqe) == 0; --in_ring_)
        io_uring_cqe_seen(&ring_, cqe);
    }
    if (ready_) io_uring_queue_exit(&ring_);
  }

  bool init(std::string* note) {
    // Completions are noted when this thread enters the kernel next, instead of interrupting it at each
    // (Linux 5.19).
    int rc = io_uring_queue_init(depth_, &ring_, IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG);
    if (rc == -EINVAL) rc = io_uring_queue_init(depth_, &ring_, 0);
    ready_ = rc == 0;
    if (ready_) rc = try_out();
    if (rc != 0 && note != nullptr) *note = std::string("io_uring is not available: ") + std::strerror(-rc);
    return rc == 0;
  }

  void submit(std::span<ReadOp* const> ops) override {
    for (ReadOp* op : ops) {
      begin(op, direct_);
      const bool probe = allow_page_cache_ && probe_.due(stats_.operations);
      ++stats_.operations;
      if (probe && read_from_page_cache(op)) {
        probe_.answered(true);
        stats_.cached_bytes += op->needed;
        op->status = base::ok_status();
        done_.push(op);
      } else {
        if (probe) probe_.answered(false);
        queued_.push(op);
      }
    }
    in_flight_ += ops.size();
    start();
  }

  size_t poll(bool wait) override {
    if (in_flight_ == 0) return 0;
    reap();
    while (wait && done_.empty() && in_ring_ > 0) {
      GANGLION_CHECK(wait_for_one());
      reap();
    }
    OpList ready;
    std::swap(ready, done_);
    size_t count = 0;
    while (ReadOp* op = ready.pop()) {
      --in_flight_;
      ++count;
      op->done(op);
    }
    return count;
  }

  size_t in_flight() const override { return in_flight_; }
  IoStats stats() const override { return stats_; }
  std::string_view name() const override { return "io_uring"; }

 private:
  // 0 if the ring takes reads and the system lets us wait for them, else -errno: kernels before 5.6 have no
  // such operation, and a filter may allow the ring but not its use.
  int try_out() {
    io_uring_probe* probe = io_uring_get_probe_ring(&ring_);
    const bool reads = probe != nullptr && io_uring_opcode_supported(probe, IORING_OP_READ) != 0;
    if (probe != nullptr) io_uring_free_probe(probe);
    if (!reads) return -EOPNOTSUPP;
    io_uring_prep_nop(io_uring_get_sqe(&ring_));
    int rc = -EINTR;
    while (rc == -EINTR) rc = io_uring_submit_and_wait(&ring_, 1);
    io_uring_cqe* cqe = nullptr;
    if (rc >= 0) rc = io_uring_peek_cqe(&ring_, &cqe);
    if (rc == 0) io_uring_cqe_seen(&ring_, cqe);
    return rc;
  }

  // Hands over what an earlier submission was refused, too: otherwise it would be waited for without end.
  bool wait_for_one() {
    const int rc = io_uring_submit_and_wait(&ring_, 1);
    return rc >= 0 || rc == -EINTR || rc == -EAGAIN || rc == -EBUSY;
  }

  // Moves queued operations into the ring as far as it has room. Bytes are limited so that what is urgent
  // does not stand behind a long line of large reads. Look-ahead waits until hardly anything else is read:
  // the device would serve all alike.
  void start() {
    while (in_ring_ < depth_ && !queued_.empty() && (ring_bytes_ < most_bytes_ || queued_.has_urgent())) {
      if (wanted_in_ring_ > kFewReads && queued_.has_only_look_ahead()) break;
      io_uring_sqe* sqe = io_uring_get_sqe(&ring_);
      if (sqe == nullptr) break;
      ReadOp* op = queued_.pop();
      op->direct = op->direct && direct_;
      const ReadStep step = next_read(*op);
      io_uring_prep_read(sqe, step.fd, step.memory, static_cast<unsigned>(step.length), step.offset);
      io_uring_sqe_set_data(sqe, op);
      op->step_bytes = step.length;
      ring_bytes_ += step.length;
      wanted_in_ring_ += op->priority == Priority::kLookAhead ? 0 : 1;
      ++in_ring_;
    }
    io_uring_submit(&ring_);
  }

  void reap() {
    io_uring_cqe* cqe = nullptr;
    bool again = false;
    while (io_uring_peek_cqe(&ring_, &cqe) == 0) {
      auto* op = static_cast<ReadOp*>(io_uring_cqe_get_data(cqe));
      const int64_t result = cqe->res;
      io_uring_cqe_seen(&ring_, cqe);
      --in_ring_;
      wanted_in_ring_ -= op->priority == Priority::kLookAhead ? 0 : 1;
      ring_bytes_ -= op->step_bytes;
      const NextStep next = advance(op, result);
      if (next == NextStep::kAgainBuffered) direct_ = false;
      if (next != NextStep::kFinished) {
        queued_.push(op);
        again = true;
        continue;
      }
      stats_.device_bytes += op->read_bytes;
      stats_.retries += static_cast<uint64_t>(op->attempts);
      if (!op->direct && op->status.ok()) stats_.direct = false;
      done_.push(op);
    }
    if (again || !queued_.empty()) start();
  }

  unsigned depth_;
  size_t most_bytes_;
  const bool allow_page_cache_;
  bool direct_;
  bool ready_ = false;
  io_uring ring_ = {};
  PriorityOpList queued_;
  OpList done_;
  size_t in_ring_ = 0;
  size_t wanted_in_ring_ = 0;  // Those that are no look-ahead.
  size_t ring_bytes_ = 0;
  size_t in_flight_ = 0;
  PageCacheProbe probe_;
  IoStats stats_;
};

}  // namespace

std::unique_ptr<ReadQueue> make_io_uring(const QueueOptions& options, std::string* note) {
  auto queue = std::make_unique<IoUringQueue>(options);
  if (!queue->init(note)) return nullptr;
  return queue;
}

}  // namespace ganglion::async_io

#else

namespace ganglion::async_io {

std::unique_ptr<ReadQueue> make_io_uring(const QueueOptions&, std::string* note) {
  if (note != nullptr) *note = "io_uring is not available: built without liburing";
  return nullptr;
}

}  // namespace ganglion::async_io

#endif

// Reads by a pool of threads that block in pread. Works everywhere; equal in rank to io_uring.
#include <unistd.h>

#include <cerrno>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "async_io/op_list.h"
#include "async_io/read_step.h"

namespace ganglion::async_io {

namespace {

/// `mutex_` guards the lists and totals; no lock is held across a read or a completion.
class PreadPool final : public ReadQueue {
 public:
  explicit PreadPool(const QueueOptions& options)
      : allow_page_cache_(options.allow_page_cache), direct_(options.allow_direct) {
    stats_.direct = direct_;
    for (int i = 0; i < options.pool_threads; ++i) threads_.emplace_back([this] { thread_main(); });
  }

  ~PreadPool() override {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      stop_ = true;
    }
    work_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  void submit(std::span<ReadOp* const> ops) override {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      for (ReadOp* op : ops) {
        begin(op, direct_);
        queued_.push(op);
      }
    }
    in_flight_ += ops.size();
    ops.size() > 1 ? work_.notify_all() : work_.notify_one();
  }

  size_t poll(bool wait) override {
    if (in_flight_ == 0) return 0;
    OpList ready;
    {
      std::unique_lock<std::mutex> lock(mutex_);
      if (wait) finished_.wait(lock, [this] { return !done_.empty(); });
      std::swap(ready, done_);
    }
    size_t count = 0;
    while (ReadOp* op = ready.pop()) {
      --in_flight_;
      ++count;
      op->done(op);
    }
    return count;
  }

  size_t in_flight() const override { return in_flight_; }

  IoStats stats() const override {
    const std::lock_guard<std::mutex> lock(mutex_);
    return stats_;
  }

  std::string_view name() const override { return "pread pool"; }

 private:
  void thread_main() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      work_.wait(lock, [this] { return stop_ || !queued_.empty(); });
      if (stop_) return;
      ReadOp* op = queued_.pop();
      const bool probe = allow_page_cache_ && probe_.due(stats_.operations);
      op->direct = op->direct && direct_;
      lock.unlock();
      const bool cached = probe && read_from_page_cache(op);
      const bool refused = !cached && !read_all(op);
      if (cached) op->status = base::ok_status();
      lock.lock();
      if (refused) direct_ = false;
      if (probe) probe_.answered(cached);
      count(*op);
      done_.push(op);
      finished_.notify_one();
    }
  }

  void count(const ReadOp& op) {
    ++stats_.operations;
    stats_.retries += static_cast<uint64_t>(op.attempts);
    stats_.device_bytes += op.read_bytes;
    stats_.cached_bytes += op.from_page_cache ? op.needed : 0;
    if (!op.from_page_cache && !op.direct && op.status.ok()) stats_.direct = false;
  }

  // False if the file refused a direct read.
  static bool read_all(ReadOp* op) {
    bool accepted = true;
    for (NextStep next = NextStep::kAgain; next != NextStep::kFinished;) {
      const ReadStep step = next_read(*op);
      const ssize_t got = ::pread(step.fd, step.memory, step.length, static_cast<off_t>(step.offset));
      next = advance(op, got < 0 ? -errno : got);
      accepted = accepted && next != NextStep::kAgainBuffered;
    }
    return accepted;
  }

  mutable std::mutex mutex_;
  std::condition_variable work_;
  std::condition_variable finished_;
  PriorityOpList queued_;
  OpList done_;
  IoStats stats_;
  const bool allow_page_cache_;
  bool direct_;
  PageCacheProbe probe_;
  bool stop_ = false;
  size_t in_flight_ = 0;  // of the submitting thread
  std::vector<std::thread> threads_;
};

}  // namespace

std::unique_ptr<ReadQueue> make_pread_pool(const QueueOptions& options) {
  return std::make_unique<PreadPool>(options);
}

std::unique_ptr<ReadQueue> make_read_queue(const QueueOptions& options, std::string* note) {
  if (options.allow_io_uring) {
    if (auto queue = make_io_uring(options, note)) return queue;
  }
  return make_pread_pool(options);
}

}  // namespace ganglion::async_io

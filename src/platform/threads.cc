#include "platform/threads.h"

#include <algorithm>

namespace ganglion::platform {

namespace {

// Long enough to bridge the gap between two loops of a layer, short beside a read from disk.
constexpr int kSpins = 4000;

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Waits until `value` is no longer `old`.
template <typename T>
void wait_change(std::atomic<T>& value, T old) {
  for (int i = 0; i < kSpins; ++i) {
    if (value.load(std::memory_order_acquire) != old) return;
    relax();
  }
  value.wait(old, std::memory_order_acquire);
}

}  // namespace

ThreadPool::ThreadPool(int threads) {
  for (int i = 1; i < threads; ++i) workers_.emplace_back([this, i] { worker_main(i); });
}

ThreadPool::~ThreadPool() {
  stop_.store(true, std::memory_order_relaxed);
  generation_.fetch_add(1, std::memory_order_release);
  generation_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::run(const Job& job) {
  job_ = job;
  next_.store(0, std::memory_order_relaxed);
  running_.store(static_cast<int>(workers_.size()), std::memory_order_relaxed);
  generation_.fetch_add(1, std::memory_order_release);
  generation_.notify_all();
  work(0);
  int left = running_.load(std::memory_order_acquire);
  while (left != 0) {
    wait_change(running_, left);
    left = running_.load(std::memory_order_acquire);
  }
}

void ThreadPool::work(int thread) {
  for (;;) {
    // That another thread may take some meanwhile does no harm.
    const size_t taken = std::min(next_.load(std::memory_order_relaxed), job_.count);
    const size_t share = (job_.count - taken) / (2 * static_cast<size_t>(size()));
    const size_t step = std::clamp(share, job_.least, job_.most);
    const size_t begin = next_.fetch_add(step, std::memory_order_relaxed);
    if (begin >= job_.count) return;
    const size_t end = std::min(begin + step, job_.count);
    job_.call(job_.context, begin, end, thread);
  }
}

void ThreadPool::worker_main(int thread) {
  unsigned seen = 0;
  for (;;) {
    wait_change(generation_, seen);
    seen = generation_.load(std::memory_order_acquire);
    if (stop_.load(std::memory_order_relaxed)) return;
    work(thread);
    if (running_.fetch_sub(1, std::memory_order_acq_rel) == 1) running_.notify_one();
  }
}

}  // namespace ganglion::platform

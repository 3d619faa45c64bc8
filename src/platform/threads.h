// A fixed pool of compute threads. Work is split by an atomic counter, so that a slow core takes less of it.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <thread>
#include <vector>

namespace ganglion::platform {

/// Runs loops on `threads` threads, the caller's among them. One loop at a time, always from the same thread.
/// Idle workers spin briefly, then sleep.
class ThreadPool {
 public:
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return static_cast<int>(workers_.size()) + 1; }

  /// Calls body(begin, end, thread) on disjoint chunks of at most `grain` that cover [0, count). Returns when
  /// all are done. No allocation. `body` must not throw or call the pool.
  template <typename Body>
  void parallel_for(size_t count, size_t grain, Body&& body) {
    run_chunks(count, grain, grain, body);
  }

  /// The same with chunks of up to `most` while much is left and of one at the end: threads go through long
  /// runs of memory, and end together.
  template <typename Body>
  void parallel_for_runs(size_t count, size_t most, Body&& body) {
    run_chunks(count, 1, most, body);
  }

 private:
  struct Job {
    void (*call)(void* context, size_t begin, size_t end, int thread) = nullptr;
    void* context = nullptr;
    size_t count = 0;
    size_t least = 1;  // Of a chunk.
    size_t most = 1;
  };
  template <typename Body>
  void run_chunks(size_t count, size_t least, size_t most, Body& body) {
    if (count <= least || workers_.empty()) {
      if (count > 0) body(size_t{0}, count, 0);
      return;
    }
    run({[](void* context, size_t begin, size_t end, int thread) {
           (*static_cast<Body*>(context))(begin, end, thread);
         },
         const_cast<void*>(static_cast<const void*>(&body)), count, least, most});
  }
  void run(const Job& job);
  void work(int thread);
  void worker_main(int thread);

  Job job_;
  std::atomic<size_t> next_{0};
  std::atomic<int> running_{0};
  std::atomic<unsigned> generation_{0};
  std::atomic<bool> stop_{false};
  std::vector<std::thread> workers_;
};

}  // namespace ganglion::platform

// What the driver's threads wake when a submission ends. Outlives the backend: callbacks may come late.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>

#include "accelerator/opencl_api.h"

namespace ganglion::accelerator {

/// Counts its users; the last deletes it. Any thread.
class OpenclWake {
 public:
  /// The owner is a user.
  static OpenclWake* create() { return new OpenclWake; }
  void leave();

  /// Notifies when the event has ended, whatever its outcome. Allocates nothing.
  void notify_at_end_of(cl_event event);
  void notify();
  uint64_t count() const;
  /// Until there were more notifications than `seen`, at most `ns`.
  void wait(uint64_t seen, int64_t ns);

 private:
  OpenclWake() = default;
  ~OpenclWake() = default;
  static void CL_CALLBACK ended(cl_event event, cl_int status, void* self);

  std::atomic<uint32_t> users_{1};
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t count_ = 0;
};

}  // namespace ganglion::accelerator

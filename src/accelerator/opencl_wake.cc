#include "accelerator/opencl_wake.h"

#include <chrono>

namespace ganglion::accelerator {

void OpenclWake::leave() {
  if (users_.fetch_sub(1) == 1) delete this;
}

void OpenclWake::notify_at_end_of(cl_event event) {
  users_.fetch_add(1);
  if (clSetEventCallback(event, CL_COMPLETE, ended, this) != CL_SUCCESS) leave();
}

void OpenclWake::ended(cl_event, cl_int, void* self) {
  auto* wake = static_cast<OpenclWake*>(self);
  wake->notify();
  wake->leave();
}

void OpenclWake::notify() {
  const std::lock_guard lock(mutex_);
  ++count_;
  changed_.notify_all();
}

uint64_t OpenclWake::count() const {
  const std::lock_guard lock(mutex_);
  return count_;
}

void OpenclWake::wait(uint64_t seen, int64_t ns) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, std::chrono::nanoseconds(ns), [&] { return count_ > seen; });
}

}  // namespace ganglion::accelerator

// The OpenCL 1.2 interface with owners of its objects. Included by opencl*.cc only.
#pragma once

#define CL_TARGET_OPENCL_VERSION 120
#include <CL/cl.h>

#include <string>
#include <utility>

namespace ganglion::accelerator {

/// Owns one reference to an OpenCL object.
template <typename Object, cl_int (*Release)(Object)>
class ClOwner {
 public:
  ClOwner() = default;
  explicit ClOwner(Object object) : object_(object) {}
  ClOwner(ClOwner&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  ClOwner& operator=(ClOwner&& other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  ClOwner(const ClOwner&) = delete;
  ClOwner& operator=(const ClOwner&) = delete;
  ~ClOwner() { reset(); }

  void reset() {
    if (object_ != nullptr) Release(object_);
    object_ = nullptr;
  }
  /// Gives the reference up without releasing it.
  void leak() { object_ = nullptr; }
  Object get() const { return object_; }
  explicit operator bool() const { return object_ != nullptr; }

 private:
  Object object_ = nullptr;
};

using ClContext = ClOwner<cl_context, clReleaseContext>;
using ClQueue = ClOwner<cl_command_queue, clReleaseCommandQueue>;
using ClMem = ClOwner<cl_mem, clReleaseMemObject>;
using ClProgram = ClOwner<cl_program, clReleaseProgram>;
using ClKernel = ClOwner<cl_kernel, clReleaseKernel>;
using ClEvent = ClOwner<cl_event, clReleaseEvent>;

/// "OpenCL error -5 (out of resources)".
std::string cl_error_text(cl_int error);

}  // namespace ganglion::accelerator

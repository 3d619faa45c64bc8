// Compiles kernels for a device, each combination of options once.
#pragma once

#include <map>
#include <mutex>
#include <string>

#include "accelerator/opencl_api.h"
#include "base/status.h"

namespace ganglion::accelerator {

/// Any thread; those that compile wait for each other.
class OpenclPrograms {
 public:
  OpenclPrograms(cl_context context, cl_device_id device) : context_(context), device_(device) {}

  /// A kernel of its own, of a program of these macros ("-D A -D B=1"). Errors: kUnsupported (does not
  /// compile), kDevice. Cost: seconds for new options.
  base::Result<ClKernel> kernel(const char* name, const std::string& macros);

 private:
  base::Result<cl_program> program(const std::string& macros);

  cl_context context_;
  cl_device_id device_;
  std::mutex mutex_;
  std::map<std::string, ClProgram> programs_;
};

}  // namespace ganglion::accelerator

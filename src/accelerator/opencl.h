// Accelerators by OpenCL 1.2: GPUs, and processors through PoCL or rusticl. Weights stay in device memory as
// GGUF and packs have them; where device and processor share memory, buffers are not copied. Computes in f32.
// Called through open_backend.h; there only where the build found OpenCL.
//
//   A submission: pending -> ended (done) | device lost. Any error of a kernel or of a call that starts one
//   loses the device, since what the driver does afterwards is not defined.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "accelerator/backend.h"

namespace ganglion::accelerator {

/// For tests: what happens to a submission, counted from 1.
struct OpenclFault {
  enum class Kind : uint8_t {
    kRefused,  ///< The call that starts it fails.
    kError,    ///< Its event reports an error.
    kHang,     ///< It waits for an event that does not come.
  };
  Kind kind = Kind::kRefused;
  uint64_t submission = 1;
};

struct OpenclOptions {
  /// Part of the platform's or device's name, in any case; empty: the first device.
  std::string_view device;
  std::vector<OpenclFault> faults;
};

/// Errors: kNotFound (no such device), kUnsupported (lacks what is needed), kDevice.
base::Result<std::unique_ptr<Backend>> open_opencl(const OpenclOptions& options);

/// A name for OpenclOptions::device of each device that can be opened: short where that is enough to find it.
std::vector<std::string> opencl_devices();

}  // namespace ganglion::accelerator

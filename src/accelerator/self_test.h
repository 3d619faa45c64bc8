// Compares what an accelerator computes with the reference kernels, before it is trusted with a model.
//
// Tolerance: an element may be off by a share of the sizes (absolute values) of its terms, since random terms
// cancel: by 1e-6 of them where the device keeps activations in f32, 5e-4 in f16, 5e-3 in int8. Rounding
// errors are of random sign, so this is some times what the worst element of a right backend shows.
#pragma once

#include <string>
#include <vector>

#include "accelerator/backend.h"

namespace ganglion::accelerator {

struct SelfTestOptions {
  std::vector<Operation> only;  ///< Where not empty, these and no others.
  uint32_t queue = 0;
  uint32_t layer = UINT32_MAX;          ///< A number of which the backend has no layer.
  int64_t timeout_ns = 60'000'000'000;  ///< Of each operation.
};

struct MaskedOperation {
  Operation operation;
  std::string why;  ///< One line that begins with the operation's name.
};

struct SelfTestReport {
  size_t tested = 0;
  double worst = 0;  ///< The largest error of an operation that passed, as a share of what it may be.
  std::vector<MaskedOperation> masked;

  bool masks(const Operation& operation) const;
};

/// All (operation, format, bucket) that the capabilities name.
std::vector<Operation> operations_of(const Capabilities& capabilities);

/// Runs each operation on small random data and masks those that refuse, fail or compute wrongly. All that it
/// creates is gone when it returns, except where the device is lost or hangs.
/// Errors: kDevice (lost, or no answer in time), kResources. Cost: a compile per operation where the backend
/// compiles; control plane.
base::Result<SelfTestReport> self_test(Backend& backend, const SelfTestOptions& options = {});

}  // namespace ganglion::accelerator

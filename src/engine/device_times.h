// How long an accelerator and the processor take for blocks of a model's FFN: measured on random weights of
// its shape before the plan is made, in some hundredths of a second.
#pragma once

#include <vector>

#include "accelerator/backend.h"
#include "kernels/kernel_table.h"
#include "planner/hot_share.h"
#include "platform/threads.h"

namespace ganglion::engine {

struct DeviceTimes {
  double hop_ns = 0;
  std::vector<planner::BlockTimes> blocks;  ///< By bucket.
};

/// `layer` says shapes and formats, its number is used meanwhile. By the device's own clock.
/// Errors: those of the backend; kDevice where a call fails or takes a second.
base::Result<DeviceTimes> measure_device(accelerator::Backend& backend, const accelerator::FfnLayer& layer,
                                         std::span<const uint32_t> buckets,
                                         const kernels::KernelTable& kernels, platform::ThreadPool& threads);

}  // namespace ganglion::engine

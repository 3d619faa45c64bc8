// How many of the most frequent neurons an accelerator takes, by the number of tokens evaluated together: a
// pure function of measured times and calibrated frequencies.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "planner/plan.h"

namespace ganglion::planner {

/// Times of one FFN block, all of its neurons being computed, for a number of tokens.
struct BlockTimes {
  uint32_t tokens = 0;
  double device_ns = 0;     ///< Beside the hop.
  double processor_ns = 0;  ///< On all threads.
};

struct HotShareRequest {
  std::span<const NeuronSet> sets = {};  ///< Those that the device can compute.
  uint32_t block_neurons = 0;
  uint32_t most_blocks = 0;       ///< That have room.
  double over_prediction = 1;     ///< Neurons predicted for one that fires.
  double hop_ns = 0;              ///< A call's time beside its work.
  std::vector<BlockTimes> times;  ///< By tokens, ascending.
};

struct HotShare {
  std::vector<uint32_t> blocks;  ///< By BlockTimes; ascending. All 0: the device is not used.
  double device_ns = 0;          ///< Of one token: the call,
  double processor_ns = 0;       ///< the neurons left to the processor meanwhile,
  double alone_ns = 0;           ///< and all neurons on the processor.
};

/// The shares that make max(device, processor) the least, where that gains at least a twentieth.
HotShare choose_hot_share(const HotShareRequest& request);

}  // namespace ganglion::planner

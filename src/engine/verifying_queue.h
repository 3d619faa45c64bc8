// A read queue that compares bundles with their checksums as they arrive (`--verify-bundles`). A read with a
// wrong one fails as if the device had refused it, and ends the pass.
#pragma once

#include <memory>

#include "async_io/read_queue.h"
#include "engine/bundle_checks.h"
#include "neuron_store/weight_store.h"

namespace ganglion::engine {

/// Passes everything to `inner`. `store` and `checks` must outlive it. Cost: the checksum of all that is
/// read, and an allocation per read.
std::unique_ptr<async_io::ReadQueue> make_verifying_queue(std::unique_ptr<async_io::ReadQueue> inner,
                                                          const neuron_store::WeightStore& store,
                                                          uint32_t shards, const BundleChecks& checks);

}  // namespace ganglion::engine

// Opens an engine with a device that the caller has made, in place of one that the options name: for tests,
// which let it fail.
#pragma once

#include <memory>

#include "accelerator/backend.h"
#include "ganglion/engine.h"

namespace ganglion::engine {

/// As Engine::open(). `device` may be null.
base::Result<std::unique_ptr<Engine>> open_with_device(const EngineOptions& options,
                                                       std::unique_ptr<accelerator::Backend> device);

}  // namespace ganglion::engine

// The chain of steps that the options name. Used by the sampler.
#pragma once

#include <string_view>
#include <vector>

#include "base/status.h"

namespace ganglion::sampling {

enum class Step { kPenalties, kDry, kTopNSigma, kTopK, kTypP, kTopP, kMinP, kXtc, kTemperature };

/// Errors: kInvalidArgument for an unknown or repeated name, with the known ones.
base::Result<std::vector<Step>> parse_steps(std::string_view samplers);

std::string_view step_name(Step step);

}  // namespace ganglion::sampling

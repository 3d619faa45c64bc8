// How much of a matrix a truncated singular value decomposition holds.
#pragma once

#include <cstdint>
#include <vector>

#include "platform/threads.h"

namespace ganglion::synthesize {

/// The share of the squares of `matrix` [rows][row] (overwritten: its mean row is removed) that the best
/// approximation of this rank has, by two subspace iterations from a random start, so slightly too low.
double low_rank_share(std::vector<float>* matrix, uint64_t row, uint32_t rank, platform::ThreadPool& threads);

}  // namespace ganglion::synthesize

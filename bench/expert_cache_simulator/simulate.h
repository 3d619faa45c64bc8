// Replays a trace against a cache of experts under several policies and counts misses. The engine's policy is
// its own BlockCache, asked in the order in which the forward pass asks; nothing is read.
#pragma once

#include "expert_cache_simulator/trace.h"
#include "neuron_cache/block_cache.h"

namespace ganglion::simulator {

struct Misses {
  uint64_t asked = 0;   ///< Expert blocks that passes needed.
  uint64_t missed = 0;  ///< Reads that this took.
};

/// Blocks of an expert: one each of gate, up and down.
inline constexpr uint32_t kBlocksPerExpert = 3;

/// `cache_experts`: how many experts fit.
Misses simulate_engine(const Trace& trace, uint32_t cache_experts,
                       const neuron_cache::EvictionOptions& options);
Misses simulate_lru(const Trace& trace, uint32_t cache_experts);
/// Serves what is there first, then evicts what is used again last. No policy that keeps whole experts and
/// reads them when they are routed can miss less.
/// Source: Belady, A study of replacement algorithms for a virtual-storage computer, 1966.
Misses simulate_optimum(const Trace& trace, uint32_t cache_experts);

}  // namespace ganglion::simulator

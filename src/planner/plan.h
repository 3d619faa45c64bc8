// Where the bytes of a budget go: a pure function of the model's sizes, the budget and what the process
// already takes. Measures nothing and allocates nothing of the model's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"

namespace ganglion::planner {

/// Memory that is never planned for use: what the kernel and the allocator may still take.
inline constexpr uint64_t kReserveBytes = uint64_t{8} << 20;

/// The packed neurons of one expert (or dense FFN) of one layer, most frequent first.
struct NeuronSet {
  uint64_t bundle_bytes = 0;         ///< In memory.
  std::span<const float> frequency;  ///< [neurons], descending: the share of tokens that use each.
  size_t layer = 0;
  uint32_t hot = 0;  ///< Neurons [0, hot) lie on a device: they take no memory of the arena.
};

/// Which passes use a dense block of a pack.
enum class BlockUse : uint8_t { kAll, kExact, kNone };

/// Sizes of a model, and how the sizes of scratch and KV depend on what is chosen.
struct ModelSizes {
  uint64_t vector_bytes = 0;               ///< Norms, biases: always in memory.
  std::span<const uint32_t> dense_blocks;  ///< Bytes of each dense block, in the order of a pass.
  uint64_t ring_slot_bytes = 0;
  uint64_t expert_bytes = 0;  ///< All experts, packed.
  uint64_t expert_block_count = 0;
  uint64_t expert_slot_bytes = 0;
  uint64_t expert_blocks_per_token = 0;  ///< Touched by one token.
  uint64_t expert_bytes_per_token = 0;
  // A pack: which passes use its dense blocks, and its neurons.
  std::span<const BlockUse> block_use;  ///< By dense block.
  std::span<const NeuronSet> neuron_sets;
  uint64_t bundle_slot_bytes = 0;  ///< Of the neuron cache.
  uint64_t hot_bytes = 0;          ///< What a device's buffers take while it is in use.
  size_t context_trained = 0;
  // Pure functions with `context` below.
  uint64_t (*scratch_bytes)(const void* context, size_t chunk) = nullptr;
  uint64_t (*kv_bytes)(const void* context, size_t positions, size_t chunk) = nullptr;
  const void* context = nullptr;
};

struct PlanRequest {
  uint64_t budget_bytes = 0;   ///< 0: the smallest that works.
  uint64_t process_bytes = 0;  ///< Code, libraries, vocabulary, stacks, tables: measured or estimated.
  size_t context = 0;          ///< Positions; 0: min(trained, 4096), lowered while it takes over half.
  size_t chunk = 0;            ///< Prefill chunk; 0: as large as is sensible.
  size_t most_chunk = 512;     ///< What is sensible at most.
  size_t answer_rows = 16;     ///< Rows of a pass that is no prompt, at most.
};

struct Plan {
  uint64_t budget_bytes = 0;
  uint64_t process_bytes = 0;
  uint64_t reserve_bytes = 0;
  uint64_t vector_bytes = 0;
  uint64_t scratch_bytes = 0;   ///< Of passes of `rows`.
  uint64_t kv_bytes = 0;        ///< What the KV cache takes now; it grows with the sequences.
  uint64_t kv_full_bytes = 0;   ///< What it takes at the full context: other uses then shrink.
  uint64_t resident_bytes = 0;  ///< Of dense blocks, and of experts where all fit.
  uint64_t ring_bytes = 0;      ///< Staging for streamed blocks (while loading only, if nothing is streamed).
  uint64_t expert_cache_bytes = 0;
  uint64_t neuron_prefix_bytes = 0;     ///< Bundles in memory for good,
  uint64_t neuron_cache_bytes = 0;      ///< cached by use,
  uint64_t neuron_staging_bytes = 0;    ///< and where they are read to.
  uint64_t hot_bytes = 0;               ///< On a device, outside the arena.
  std::vector<uint32_t> neuron_prefix;  ///< By set: so many of the most frequent are in memory (the first on
                                        ///< a device)...
  std::vector<uint32_t> neuron_warm;    ///< ...and up to here they are cached at start.
  size_t context = 0;
  size_t chunk = 0;        ///< Rows of a prompt's pass at most.
  size_t answer_rows = 0;  ///< Rows that scratch has room for between prompts: others then have the rest.
  size_t rows = 0;         ///< Rows that scratch has room for now.
  bool context_lowered = false;
  bool experts_resident = false;
  size_t ring_slots = 0;
  size_t expert_slots = 0;
  /// Dense blocks in memory, a prefix of spread_order(): less memory cuts its end, more extends it.
  std::vector<uint32_t> dense_resident;
  uint64_t streamed_bytes = 0;          ///< Dense bytes read per pass.
  uint64_t expert_bytes_per_token = 0;  ///< Expert bytes touched per token.

  bool packed() const { return !neuron_prefix.empty(); }
  bool streams() const {
    return streamed_bytes > 0 || neuron_cache_bytes > 0 || (expert_slots > 0 && !experts_resident);
  }
  /// Bytes of the arena: everything but process and reserve, in whole segments.
  uint64_t arena_bytes() const;
  uint64_t planned_bytes() const { return process_bytes + reserve_bytes + hot_bytes + arena_bytes(); }
};

/// All of [0, count), such that every prefix is spread evenly (bit-reversed counting): what is streamed then
/// overlaps with every layer's compute, whatever the budget.
std::vector<uint32_t> spread_order(size_t count);

/// Of each set the most frequent neurons, such that all that are taken are at least as frequent as all that
/// are not, and their bundles take at most `room_bytes`. Those on a device are taken and need no room.
std::vector<uint32_t> most_frequent(std::span<const NeuronSet> sets, uint64_t room_bytes);

/// What changes while a model is in use.
struct PlanChange {
  uint64_t budget_bytes = 0;
  uint64_t kv_bytes = 0;
  size_t rows = 0;  ///< Rows that scratch has room for.
};
inline PlanChange unchanged(const Plan& plan) {
  return {plan.budget_bytes, plan.kv_bytes, plan.rows};
}

/// `plan` with a change; context and chunk stay.
/// Errors: kResources if the budget does not hold the minimum with the full context and chunk.
base::Result<Plan> replan(const ModelSizes& sizes, const Plan& plan, const PlanChange& change);

/// Errors: kResources, saying what is needed for what and the smallest budget that would do.
base::Result<Plan> make_plan(const ModelSizes& sizes, const PlanRequest& request);

}  // namespace ganglion::planner

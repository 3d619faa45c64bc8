#include "planner/plan.h"

#include <algorithm>
#include <map>

#include "base/units.h"

namespace ganglion::planner {

using base::Code;
using base::Result;
using base::Status;

namespace {

constexpr uint64_t kSegment = 2 * base::kMiB;
constexpr size_t kDefaultContext = 4096;
constexpr size_t kLeastContext = 256;
// The KV cache starts with so many positions.
constexpr size_t kFirstPositions = 256;
constexpr size_t kMinimumChunk = 16;
// Fewer slots would leave the device idle while a block is computed on.
constexpr uint64_t kLeastRingSlots = 4;
constexpr uint64_t kMostRingSlots = 64;
// Bundles of a layer, in flight and being computed on.
constexpr uint64_t kLeastStagingBytes = 2 * base::kMiB;
constexpr uint64_t kUsualStagingBytes = 6 * base::kMiB;
constexpr uint64_t kMostStagingBytes = 32 * base::kMiB;
// Exact passes of a pack compute long on each block.
constexpr uint64_t kMostPackRingSlots = 16;
// One part in so many of the memory for neurons is a cache, the rest is fixed.
constexpr uint64_t kCacheShare = 5;

uint64_t segments(uint64_t bytes) {
  return base::round_up(bytes, kSegment);
}

uint64_t packed(std::span<const uint32_t> blocks) {
  uint64_t sum = 0;
  for (const uint32_t bytes : blocks) sum += base::round_up(bytes, 64);
  return sum;
}

// As long a prefix of the spread order as fits.
uint64_t spread_resident(std::span<const uint32_t> blocks, uint64_t room, std::vector<uint32_t>* resident) {
  uint64_t used = 0;
  resident->clear();
  for (const uint32_t block : spread_order(blocks.size())) {
    const uint64_t bytes = base::round_up(blocks[block], 64);
    if (used + bytes > room) break;
    resident->push_back(block);
    used += bytes;
  }
  return used;
}

// Everything of a plan that does not depend on how much is left over.
Plan fixed_part(const ModelSizes& sizes, const PlanRequest& request, size_t context, size_t chunk) {
  Plan plan;
  plan.process_bytes = request.process_bytes;
  plan.reserve_bytes = kReserveBytes;
  plan.vector_bytes = sizes.vector_bytes;
  plan.context = context;
  plan.chunk = chunk;
  plan.answer_rows = std::min(request.answer_rows, chunk);
  plan.rows = chunk;
  plan.scratch_bytes = sizes.scratch_bytes(sizes.context, chunk);
  plan.kv_full_bytes = sizes.kv_bytes(sizes.context, context, chunk);
  plan.kv_bytes = plan.kv_full_bytes;
  plan.ring_slots = kLeastRingSlots;
  plan.ring_bytes = std::max(kLeastRingSlots * sizes.ring_slot_bytes, sizes.expert_slot_bytes);
  if (sizes.expert_block_count > 0) {
    plan.expert_slots = std::min<uint64_t>(kLeastRingSlots, sizes.expert_block_count);
    plan.expert_cache_bytes = plan.expert_slots * sizes.expert_slot_bytes;
  }
  plan.expert_bytes_per_token = sizes.expert_bytes_per_token;
  if (!sizes.neuron_sets.empty()) {
    plan.neuron_staging_bytes = kLeastStagingBytes;
    plan.hot_bytes = sizes.hot_bytes;
    for (const NeuronSet& set : sizes.neuron_sets) plan.neuron_prefix.push_back(set.hot);
    plan.neuron_warm = plan.neuron_prefix;
  }
  return plan;
}

// Of the first `count` neurons, those that are on no device.
uint64_t bytes_of(const NeuronSet& set, uint64_t count) {
  return base::round_up((count - set.hot) * set.bundle_bytes, 64);
}

uint64_t packed_neurons(std::span<const NeuronSet> sets, std::span<const uint32_t> counts) {
  uint64_t bytes = 0;
  for (size_t i = 0; i < sets.size(); ++i) bytes += bytes_of(sets[i], counts[i]);
  return bytes;
}

// Segments that the KV cache and the scratch of prompts may still ask for.
uint64_t growth(const ModelSizes& sizes, const Plan& plan) {
  return segments(plan.kv_full_bytes) - segments(plan.kv_bytes) +
         segments(plan.vector_bytes + sizes.scratch_bytes(sizes.context, plan.chunk)) -
         segments(plan.vector_bytes + plan.scratch_bytes);
}

// Staging for the reads of the layer that has most, and half as much again for gaps between them: a layer
// that has to wait for room waits for its last reads each time.
uint64_t staging_for_reads(const ModelSizes& sizes, const Plan& plan) {
  std::map<size_t, double> bytes;
  for (size_t i = 0; i < sizes.neuron_sets.size(); ++i) {
    const NeuronSet& set = sizes.neuron_sets[i];
    const uint64_t read = base::round_up(set.bundle_bytes, 4096) + 4096;
    for (size_t n = std::max(plan.neuron_prefix[i], plan.neuron_warm[i]); n < set.frequency.size(); ++n)
      bytes[set.layer] += static_cast<double>(set.frequency[n]) * static_cast<double>(read);
  }
  double most = 0;
  for (const auto& [layer, of_layer] : bytes) most = std::max(most, of_layer);
  return static_cast<uint64_t>(1.5 * most);
}

// A pack: what every token needs comes first, then the most frequent neurons, then, if all of those fit, the
// blocks that only exact passes use.
void share_out_pack(const ModelSizes& sizes, uint64_t staging, Plan* plan) {
  const uint64_t available = plan->budget_bytes - plan->process_bytes - plan->reserve_bytes - plan->hot_bytes;
  // Only the neuron cache gives way later.
  const uint64_t spare = growth(sizes, *plan);
  uint64_t room =
      available - segments(plan->vector_bytes + plan->scratch_bytes) - segments(plan->kv_bytes) - spare;
  plan->ring_slots = std::clamp(room / 64 / sizes.ring_slot_bytes, kLeastRingSlots, kMostPackRingSlots);
  plan->ring_bytes = std::max(plan->ring_slots * sizes.ring_slot_bytes, plan->ring_bytes);
  plan->neuron_staging_bytes = segments(std::clamp(room / 64, plan->neuron_staging_bytes, staging));
  room = base::round_down(room - std::min(room, segments(plan->ring_bytes) + plan->neuron_staging_bytes),
                          kSegment);
  uint64_t always = 0;
  uint64_t all_neurons = 0;
  for (size_t i = 0; i < sizes.dense_blocks.size(); ++i)
    always += sizes.block_use[i] != BlockUse::kAll ? 0 : base::round_up(sizes.dense_blocks[i], 64);
  for (const NeuronSet& set : sizes.neuron_sets) all_neurons += bytes_of(set, set.frequency.size());
  plan->dense_resident.clear();
  for (const BlockUse use : {BlockUse::kAll, BlockUse::kExact}) {
    if (use == BlockUse::kExact && segments(always) + segments(all_neurons) > room) break;
    const uint64_t limit = use == BlockUse::kAll ? room : room - segments(all_neurons);
    for (const uint32_t block : spread_order(sizes.dense_blocks.size())) {
      const uint64_t bytes = base::round_up(sizes.dense_blocks[block], 64);
      if (sizes.block_use[block] != use || plan->resident_bytes + bytes > limit) continue;
      plan->dense_resident.push_back(block);
      plan->resident_bytes += bytes;
    }
  }
  for (size_t i = 0; i < sizes.dense_blocks.size(); ++i)
    plan->streamed_bytes += sizes.block_use[i] != BlockUse::kNone ? sizes.dense_blocks[i] : 0;
  for (const uint32_t block : plan->dense_resident) plan->streamed_bytes -= sizes.dense_blocks[block];
  room -= std::min(room, segments(plan->resident_bytes));
  if (segments(all_neurons) <= room) {
    plan->neuron_prefix = most_frequent(sizes.neuron_sets, all_neurons);
    plan->neuron_prefix_bytes = all_neurons;
    plan->neuron_warm = plan->neuron_prefix;
    return;
  }
  // A part follows what is used now.
  room += spare;
  const uint64_t cache = std::min(room, segments(std::max(room / kCacheShare, spare)));
  plan->neuron_prefix = most_frequent(sizes.neuron_sets, room - cache);
  plan->neuron_prefix_bytes = packed_neurons(sizes.neuron_sets, plan->neuron_prefix);
  plan->neuron_cache_bytes = room - std::min(room, segments(plan->neuron_prefix_bytes));
  plan->neuron_warm =
      most_frequent(sizes.neuron_sets, plan->neuron_prefix_bytes + plan->neuron_cache_bytes / 64 * 63);
}

void share_out_pack(const ModelSizes& sizes, Plan* plan) {
  const Plan fixed = *plan;
  share_out_pack(sizes, kUsualStagingBytes, plan);
  const uint64_t wanted = std::min(staging_for_reads(sizes, *plan), kMostStagingBytes);
  if (wanted <= kUsualStagingBytes) return;
  *plan = fixed;
  share_out_pack(sizes, wanted, plan);
}

void use_rows(const ModelSizes& sizes, size_t rows, Plan* plan) {
  plan->rows = rows;
  plan->scratch_bytes = sizes.scratch_bytes(sizes.context, rows);
}

// Shares out what the budget leaves above the fixed part.
void share_out(const ModelSizes& sizes, Plan* plan) {
  if (!sizes.neuron_sets.empty()) return share_out_pack(sizes, plan);
  const uint64_t dense = packed(sizes.dense_blocks);
  const uint64_t available = plan->budget_bytes - plan->process_bytes - plan->reserve_bytes;
  const uint64_t fixed = segments(plan->vector_bytes + plan->scratch_bytes) + segments(plan->kv_bytes);
  const uint64_t load_ring = segments(plan->ring_bytes);
  plan->dense_resident = spread_order(sizes.dense_blocks.size());
  const uint64_t full_kv = segments(plan->kv_full_bytes) - segments(plan->kv_bytes);
  if (fixed + full_kv + segments(dense + sizes.expert_bytes) + load_ring <= available) {
    plan->kv_bytes = plan->kv_full_bytes;
    plan->resident_bytes = dense + sizes.expert_bytes;
    plan->experts_resident = sizes.expert_block_count > 0;
    plan->expert_slots = 0;
    plan->expert_cache_bytes = 0;
    return;
  }
  const bool has_experts = sizes.expert_block_count > 0;
  const uint64_t least_experts = segments(plan->expert_cache_bytes);
  const uint64_t left = available - fixed - least_experts;
  if (has_experts && segments(dense) + load_ring <= left) {
    plan->resident_bytes = dense;
    const uint64_t room = left + least_experts - segments(dense) - load_ring;
    plan->expert_slots =
        std::min(sizes.expert_block_count, base::round_down(room, kSegment) / sizes.expert_slot_bytes);
    plan->expert_cache_bytes = plan->expert_slots * sizes.expert_slot_bytes;
    return;
  }
  plan->ring_slots = std::clamp(left / 16 / sizes.ring_slot_bytes, kLeastRingSlots, kMostRingSlots);
  plan->ring_bytes = std::max(plan->ring_slots * sizes.ring_slot_bytes, plan->ring_bytes);
  const uint64_t room = base::round_down(left - std::min(left, segments(plan->ring_bytes)), kSegment);
  plan->resident_bytes = spread_resident(sizes.dense_blocks, room, &plan->dense_resident);
  for (const uint32_t bytes : sizes.dense_blocks) plan->streamed_bytes += bytes;
  for (const uint32_t block : plan->dense_resident) plan->streamed_bytes -= sizes.dense_blocks[block];
}

std::string itemise(const Plan& plan) {
  const std::string hot =
      plan.hot_bytes == 0 ? "" : ", hot neurons on the device " + base::format_bytes(plan.hot_bytes);
  return base::format(
             "process %s, reserve %s, norms and scratch (chunk %zu) %s, KV (context %zu) %s, staging %s%s",
             base::format_bytes(plan.process_bytes).c_str(), base::format_bytes(plan.reserve_bytes).c_str(),
             plan.chunk, base::format_bytes(segments(plan.vector_bytes + plan.scratch_bytes)).c_str(),
             plan.context, base::format_bytes(segments(plan.kv_bytes)).c_str(),
             base::format_bytes(segments(plan.ring_bytes)).c_str(),
             plan.expert_cache_bytes == 0
                 ? ""
                 : (", experts " + base::format_bytes(segments(plan.expert_cache_bytes))).c_str()) +
         hot;
}

Status too_small(const Plan& plan, uint64_t budget_bytes, bool fixed_context) {
  // What the process takes differs a little from run to run: a mebibyte more does for the next one as well.
  const uint64_t advised = plan.planned_bytes() + base::kMiB;
  return Status(Code::kResources,
                base::format("a budget of %s is too small: %s are needed (%s) - use --mem %lluM or more%s",
                             base::format_bytes(budget_bytes).c_str(),
                             base::format_bytes(plan.planned_bytes()).c_str(), itemise(plan).c_str(),
                             static_cast<unsigned long long>(base::ceil_div(advised, base::kMiB)),
                             fixed_context ? ", or a smaller context (-c)" : ""));
}

}  // namespace

std::vector<uint32_t> spread_order(size_t count) {
  std::vector<uint32_t> order;
  order.reserve(count);
  unsigned bits = 0;
  while ((size_t{1} << bits) < count) ++bits;
  for (size_t i = 0; i < size_t{1} << bits; ++i) {
    size_t reversed = 0;
    for (unsigned bit = 0; bit < bits; ++bit) reversed |= (i >> bit & 1) << (bits - 1 - bit);
    if (reversed < count) order.push_back(static_cast<uint32_t>(reversed));
  }
  return order;
}

namespace {

// Of a pack in use only the neuron cache changes its size.
Result<Plan> replan_pack(const ModelSizes& sizes, const Plan& plan, const PlanChange& change) {
  Plan next = plan;
  next.budget_bytes = change.budget_bytes;
  next.neuron_cache_bytes = 0;
  next.hot_bytes = sizes.hot_bytes;
  next.kv_bytes = next.kv_full_bytes;
  next.scratch_bytes = sizes.scratch_bytes(sizes.context, plan.chunk);
  if (next.planned_bytes() > next.budget_bytes) {
    return Status(
        Code::kResources,
        base::format("a pack in use can give back its neuron cache only: %s are needed, %s are asked for",
                     base::format_bytes(next.planned_bytes()).c_str(),
                     base::format_bytes(next.budget_bytes).c_str()));
  }
  next.kv_bytes = std::min(change.kv_bytes, next.kv_full_bytes);
  use_rows(sizes, change.rows, &next);
  uint64_t all_neurons = 0;
  for (const NeuronSet& set : sizes.neuron_sets)
    all_neurons += set.frequency.size() * sizes.bundle_slot_bytes;
  next.neuron_cache_bytes = std::min(base::round_down(next.budget_bytes - next.planned_bytes(), kSegment),
                                     segments(all_neurons - std::min(all_neurons, next.neuron_prefix_bytes)));
  return next;
}

}  // namespace

std::vector<uint32_t> most_frequent(std::span<const NeuronSet> sets, uint64_t room_bytes) {
  const auto at_least = [&](float frequency) {
    std::vector<uint32_t> counts;
    for (const NeuronSet& set : sets) {
      const auto end = std::upper_bound(set.frequency.begin(), set.frequency.end(), frequency,
                                        [](float value, float f) { return value > f; });
      counts.push_back(std::max(set.hot, static_cast<uint32_t>(end - set.frequency.begin())));
    }
    return counts;
  };
  // Neurons more frequent than `fits` have room; those more frequent than `too_many` have not.
  float fits = 2;
  float too_many = -1;
  if (packed_neurons(sets, at_least(too_many)) <= room_bytes) return at_least(too_many);
  for (int i = 0; i < 40; ++i) {
    const float middle = (fits + too_many) / 2;
    (packed_neurons(sets, at_least(middle)) <= room_bytes ? fits : too_many) = middle;
  }
  // Of equally frequent ones as many as fit, set by set.
  std::vector<uint32_t> counts = at_least(fits);
  const std::vector<uint32_t> most = at_least(too_many);
  uint64_t used = packed_neurons(sets, counts);
  for (size_t i = 0; i < sets.size(); ++i) {
    const uint64_t before = bytes_of(sets[i], counts[i]);
    const auto more =
        sets[i].hot + static_cast<uint32_t>((room_bytes - used + before) / sets[i].bundle_bytes);
    uint32_t count = std::clamp(more, counts[i], most[i]);
    while (count > counts[i] && used - before + bytes_of(sets[i], count) > room_bytes) --count;
    used += bytes_of(sets[i], count) - before;
    counts[i] = count;
  }
  return counts;
}

Result<Plan> replan(const ModelSizes& sizes, const Plan& plan, const PlanChange& change) {
  if (plan.packed()) return replan_pack(sizes, plan, change);
  const PlanRequest request = {.budget_bytes = change.budget_bytes,
                               .process_bytes = plan.process_bytes,
                               .context = plan.context,
                               .chunk = plan.chunk,
                               .answer_rows = plan.answer_rows};
  Plan next = fixed_part(sizes, request, plan.context, plan.chunk);
  if (next.planned_bytes() > change.budget_bytes) return too_small(next, change.budget_bytes, true);
  next.budget_bytes = change.budget_bytes;
  next.context_lowered = plan.context_lowered;
  next.kv_bytes = std::min(change.kv_bytes, next.kv_full_bytes);
  use_rows(sizes, change.rows, &next);
  share_out(sizes, &next);
  return next;
}

uint64_t Plan::arena_bytes() const {
  return segments(vector_bytes + scratch_bytes) + segments(kv_bytes) + segments(resident_bytes) +
         segments(ring_bytes) + segments(expert_cache_bytes) + segments(neuron_prefix_bytes) +
         segments(neuron_cache_bytes) + segments(neuron_staging_bytes);
}

namespace {

// Shares out; where not all fits, scratch takes only what answers need until a prompt comes.
Plan between_prompts(const ModelSizes& sizes, const Plan& fixed) {
  Plan plan = fixed;
  share_out(sizes, &plan);
  if (!plan.streams() || plan.answer_rows == plan.chunk) return plan;
  plan = fixed;
  use_rows(sizes, plan.answer_rows, &plan);
  share_out(sizes, &plan);
  return plan;
}

}  // namespace

Result<Plan> make_plan(const ModelSizes& sizes, const PlanRequest& request) {
  const bool fixed_context = request.context > 0;
  size_t context = fixed_context ? request.context : std::min(sizes.context_trained, kDefaultContext);
  if (request.budget_bytes == 0) {
    if (!fixed_context) context = std::min(context, kLeastContext);
    const size_t chunk = request.chunk > 0 ? request.chunk : std::min(kMinimumChunk, context);
    Plan plan = fixed_part(sizes, request, context, chunk);
    plan.budget_bytes = plan.planned_bytes();
    plan.context_lowered = !fixed_context && context < std::min(sizes.context_trained, kDefaultContext);
    return between_prompts(sizes, plan);
  }
  const size_t first_context = context;
  for (;;) {
    size_t chunk = request.chunk > 0 ? request.chunk : std::min(request.most_chunk, context);
    Plan plan = fixed_part(sizes, request, context, chunk);
    // A chunk saves reading per prompt token, but what its buffers displace is read anew after the prompt.
    const uint64_t most_scratch = request.budget_bytes / (sizes.neuron_sets.empty() ? 4 : 8);
    while (request.chunk == 0 && chunk > 1 &&
           (plan.planned_bytes() > request.budget_bytes ||
            (chunk > kMinimumChunk && plan.scratch_bytes > most_scratch))) {
      chunk = chunk > kMinimumChunk ? base::round_down(chunk - 1, kMinimumChunk) : chunk / 2;
      plan = fixed_part(sizes, request, context, chunk);
    }
    plan.budget_bytes = request.budget_bytes;
    plan.context_lowered = context < first_context;
    const bool fits = plan.planned_bytes() <= request.budget_bytes;
    const uint64_t arena =
        request.budget_bytes - std::min(request.budget_bytes, plan.process_bytes + kReserveBytes);
    const bool crowds_out = !fixed_context && context > kLeastContext && plan.kv_bytes > arena / 2;
    if (fits && !crowds_out) {
      plan.kv_bytes =
          sizes.kv_bytes(sizes.context, std::min(context, std::max(chunk, kFirstPositions)), chunk);
      return between_prompts(sizes, plan);
    }
    if (!fixed_context && context > kLeastContext) {
      context = std::max(kLeastContext, context / 2);
      continue;
    }
    return too_small(plan, request.budget_bytes, fixed_context);
  }
}

}  // namespace ganglion::planner

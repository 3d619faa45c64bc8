// Joins store and caches: pins a block now if it is in memory, or has it read. Three kinds of blocks:
//   resident  chosen by the plan, loaded at start, never leaves
//   streamed  dense blocks that every pass touches in the same order: read ahead in that order, into the next
//             pass, into a ring of slots; used once and dropped
//   expert    read when routed, kept by decayed use counts of its expert
//
//   Read-ahead of streamed blocks is a cursor (pass, place in the order). It moves on while the ring has free
//   slots, to the end of the pass after the current one at most:
//
//     begin_pass: cursor >= start of this pass; a head that is not wanted is dropped
//     unpin:      the slot is free again -> the cursor moves on
//     wait:       nothing is being read, so the cursor has passed `first_needed` -> back to it, ring dropped
//     restart:    everything is read out and dropped -> start of the next pass
//
// Owned by the engine's thread, which alone calls it; reads run in the queue's threads or the kernel.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "async_io/read_queue.h"
#include "base/status.h"
#include "neuron_cache/arena.h"
#include "neuron_cache/block_cache.h"
#include "neuron_store/weight_store.h"

namespace ganglion::neuron_stream {

using neuron_store::BlockId;
using neuron_store::BlockRange;

/// What the plan decided about blocks. Dense blocks are [0, dense_blocks), expert blocks follow.
struct StreamConfig {
  BlockId dense_blocks = 0;
  BlockId head_begin = 0;              ///< First block of the output head, the last of the dense ones.
  std::vector<BlockId> resident;       ///< The ones to give up first stand last.
  std::vector<BlockId> streamed;       ///< Dense blocks not resident, in the order of a pass.
  size_t streamed_tail = 0;            ///< How many at the end of `streamed` belong to the output head.
  std::vector<bool> exact_only;        ///< By dense block: not used by sparse passes. Empty: all are.
  std::vector<uint32_t> expert_group;  ///< By expert block: its expert, counted over all layers.
  uint32_t expert_groups = 0;
  size_t ring_slots = 0;
  size_t expert_slots = 0;
};

/// What a pass will use, as far as read-ahead needs to know.
struct PassKind {
  bool output = true;  ///< Computes the output head.
  bool exact = true;   ///< Uses the blocks that sparse passes do not.
};

struct StreamStats {
  uint64_t device_bytes = 0;  ///< Read from the device, widening included.
  uint64_t cached_bytes = 0;  ///< Taken from the page cache.
  uint64_t reads = 0;
  uint64_t expert_hits = 0;  ///< Expert blocks found in memory when first asked for.
  uint64_t expert_misses = 0;
  uint64_t ahead_reads = 0;   ///< Expert blocks read before they were known to be needed...
  uint64_t ahead_used = 0;    ///< ...and then needed...
  uint64_t ahead_wasted = 0;  ///< ...or evicted unused, counted when they are read again.
  int64_t wait_ns = 0;        ///< Time in wait() and of add_wait_ns().
};

class NeuronStream {
 public:
  /// Commits the memory of ring, residents and expert cache. `store` and `queue` must outlive it.
  /// Errors: kResources.
  static base::Result<std::unique_ptr<NeuronStream>> create(const neuron_store::WeightStore& store,
                                                            async_io::ReadQueue& queue,
                                                            neuron_cache::Arena& arena, StreamConfig config);
  ~NeuronStream();
  NeuronStream(const NeuronStream&) = delete;
  NeuronStream& operator=(const NeuronStream&) = delete;

  /// Bytes of memory that `resident` takes, as create() lays it out.
  static size_t resident_bytes(const neuron_store::WeightStore& store, std::span<const BlockId> resident);
  static size_t ring_slot_bytes(const neuron_store::WeightStore& store, BlockId dense_blocks);
  static size_t expert_slot_bytes(const neuron_store::WeightStore& store, BlockId dense_blocks);

  /// Reads all resident blocks, calling progress(context, done, total) now and then; false stops with
  /// kCancelled. Errors: those of a read.
  base::Status load_resident(bool (*progress)(void* context, uint64_t done, uint64_t total), void* context);

  /// Changes what is in memory between passes: `next` differs from the present configuration in resident,
  /// streamed and the numbers of slots alone, and one of the two resident lists begins with the other.
  /// Shrinking uses give their memory back before growing ones take it. Errors: those of reading new
  /// residents, which are then streamed; kResources.
  base::Status rearrange(StreamConfig next);

  /// A pass over the model begins; its kind and that of the next one decide what is read ahead.
  void begin_pass(PassKind kind, PassKind next);
  /// This pass will not use a streamed block that others do (an expert that no token was routed to).
  void skip(BlockId block);
  /// The pass was given up: waits for what is being read, forgets errors, and starts read-ahead over from the
  /// first layer with the next pass.
  void restart();

  /// The block's bytes, pinned, if they are in memory; else null.
  const uint8_t* try_pin(BlockId block);
  void unpin(BlockId block);
  /// Has an absent block read as soon as there is room for it. Streamed blocks come by themselves.
  void request(BlockId block);
  /// Has an expert block read that may be needed soon, at low priority and only while the device has little
  /// to do.
  void request_ahead(BlockId block);
  /// True where the block never has to be waited for.
  bool is_resident(BlockId block) const { return resident_data_[block] != nullptr; }
  /// Sleeps until a read completes. `first_needed` is a block that the caller cannot go on without: if
  /// nothing is on its way, its read is started. Returns at once if it is in memory. Requires: no streamed
  /// block pinned and at least one expert slot unpinned. Errors: those of any read since the last call whose
  /// block is still wanted.
  base::Status wait(BlockId first_needed);
  /// Runs completions that are ready.
  void poll();
  bool reading() const { return queue_.in_flight() > 0; }

  /// Slots of the expert cache; SIZE_MAX where all experts are resident.
  size_t expert_slots() const;

  /// Counts a use of an expert (a group of StreamConfig::expert_group), before its blocks are requested.
  void use_expert(uint32_t group);
  /// A prompt is done with an expert: it gives way to the next ones if it was read for this pass.
  void leave_expert(uint32_t group) { experts_->give_way(group); }
  /// A prompt will ask for these experts' blocks next: reads those that are absent, as far as others give way
  /// or, for `groups` experts a pass, the coldest do.
  void read_next(std::span<const BlockId> blocks, uint32_t groups);
  /// A pass is done: older uses fade.
  void tick();

  /// Counts a wait of the pass for a read of its own.
  void add_wait_ns(int64_t ns) { stats_.wait_ns += ns; }
  StreamStats stats() const;

 private:
  struct BlockRead {
    async_io::ReadOp op;
    NeuronStream* stream = nullptr;
    neuron_cache::BlockCache* cache = nullptr;
    BlockId block = 0;
    BlockRead* next_free = nullptr;
  };

  NeuronStream(const neuron_store::WeightStore& store, async_io::ReadQueue& queue, StreamConfig config);
  base::Status reserve_memory(neuron_cache::Arena& arena);
  base::Status commit_memory();
  base::Status load(std::span<const BlockId> blocks, bool (*progress)(void*, uint64_t, uint64_t),
                    void* context);
  void set_resident(size_t count);
  void stream_from(size_t resident_count, size_t ring_slots, size_t expert_slots);
  void index_streamed();
  bool is_expert(BlockId block) const { return block >= config_.dense_blocks; }
  bool in_memory(BlockId block) const;
  size_t loading_slot_bytes() const;
  bool start_read(neuron_cache::BlockCache& cache, BlockId block, bool force, async_io::Priority priority);
  static void read_done(async_io::ReadOp* op);
  void count_ask(BlockId block, bool here);
  void pump();
  void pump_next();
  bool start_ahead(BlockId block, bool force);
  /// Of an expert's block.
  bool is_absent(BlockId block) const {
    return resident_data_[block] == nullptr && experts_->state(block) == neuron_cache::BlockState::kAbsent;
  }
  void seek(BlockId block);
  void drop_streamed();
  bool passed_over(BlockId block) const;

  const neuron_store::WeightStore& store_;
  async_io::ReadQueue& queue_;
  StreamConfig config_;
  neuron_cache::Region resident_region_;
  neuron_cache::Region ring_region_;
  neuron_cache::Region expert_region_;
  std::vector<uint8_t*> resident_data_;  // by block; null if not resident
  std::unique_ptr<neuron_cache::BlockCache> ring_;
  std::unique_ptr<neuron_cache::BlockCache> experts_;
  std::vector<size_t> order_of_;  // place in config_.streamed by dense block
  std::vector<BlockId> next_;     // of read_next(), from next_at_ on
  size_t next_at_ = 0;
  uint32_t next_groups_ = 0;
  std::vector<bool> ahead_;        // by expert block: read ahead and not used yet
  std::vector<bool> asked_;        // by expert block: counted as hit or miss in this pass
  size_t cursor_ = 0;              // next of config_.streamed to read
  uint64_t pass_ = 0;              // passes begun
  uint64_t cursor_pass_ = 1;       // the pass that cursor_ belongs to
  PassKind kind_[2];               // by pass parity
  std::vector<uint64_t> skipped_;  // by dense block: the last pass that did not use it
  std::vector<BlockRead> reads_;
  BlockRead* free_reads_ = nullptr;
  size_t expert_reads_ = 0;  // under way; limited, so that read-ahead always finds a read
  base::Status error_;
  StreamStats stats_;
};

}  // namespace ganglion::neuron_stream

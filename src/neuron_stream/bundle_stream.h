// The bundles of a pack in memory and on their way. Three places where a bundle can be:
//   prefix   the most frequent neurons of each expert, chosen by the plan: one array, loaded at start; the
//            hottest of them may lie on a device instead, which is given them then
//   cache    single neurons, kept by decayed use counts (neuron_cache::BundleCache)
//   staging  where the present layer's reads land, widened and aligned; computed on there
//
//   A layer of a sparse pass:  begin_layer -> request_ahead, submit (what it is likely to need) -> find,
//   request, submit (any thread), poll or wait, find ... -> retire, or begin_layer of the next. What staging
//   held is then admitted to the cache or forgotten.
//
// Owned by the engine's thread; find() may run on several threads while no other call does.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "async_io/read_queue.h"
#include "base/status.h"
#include "neuron_cache/arena.h"
#include "neuron_cache/bundle_cache.h"
#include "neuron_store/weight_store.h"

namespace ganglion::neuron_stream {

/// The bundles of a layer on storage, [experts][neurons]. `set` below counts (layer, expert) over all layers.
struct BundleLayer {
  uint32_t shard = 0;
  uint64_t offset = 0;
  uint32_t stride = 0;  ///< 0: the layer is not packed (and has no sets).
  uint32_t bytes = 0;   ///< Without padding.
  uint32_t neurons = 0;
  uint32_t experts = 0;
};

struct BundlePlan {
  std::vector<uint32_t> prefix;    ///< By set: neurons [0, prefix) stay in memory;
  std::vector<uint32_t> warm;      ///< neurons [prefix, warm) are in the cache at start.
  std::vector<uint32_t> hot = {};  ///< Neurons [0, hot) of a prefix are elsewhere. Empty: none.
  size_t cache_bytes = 0;
  size_t later_bytes = 0;  ///< What others may give the cache beyond the arena's present budget.
  size_t staging_bytes = 0;
};

struct BundleStats {
  uint64_t prefix_uses = 0;
  uint64_t cache_uses = 0;
  uint64_t misses = 0;       ///< Bundles wanted that were read while they were waited for.
  uint64_t ahead_reads = 0;  ///< Bundles read by look-ahead...
  uint64_t ahead_used = 0;   ///< ...and then wanted.
  uint64_t requests = 0;     ///< Reads issued, neighbours being merged.
  int64_t wait_ns = 0;
};

/// The gap up to which neighbours are read at once: half of what a request costs beside its bytes, in bytes
/// (the other half for the memory that unwanted bytes take), by the times of reads of two sizes.
uint64_t merge_gap(double small_ns, uint64_t small_bytes, double large_ns, uint64_t large_bytes);

/// Is given the hot neurons of sets as they are loaded.
class HotSink {
 public:
  virtual ~HotSink() = default;
  virtual void take(uint32_t set, uint32_t neuron, const uint8_t* bundle) = 0;
};

class BundleStream {
 public:
  /// `frequency`: of all neurons, set by set. `store` and `queue` must outlive it. Errors: kResources.
  static base::Result<std::unique_ptr<BundleStream>> create(
      const neuron_store::WeightStore& store, async_io::ReadQueue& queue, neuron_cache::Arena& arena,
      std::vector<BundleLayer> layers, std::span<const float> frequency, BundlePlan plan);
  ~BundleStream();
  BundleStream(const BundleStream&) = delete;
  BundleStream& operator=(const BundleStream&) = delete;

  /// Of a cache slot: the largest bundle.
  static size_t slot_bytes(std::span<const BundleLayer> layers);

  /// Reads hot neurons, prefixes and warm neurons, in large sequential reads. Progress as
  /// NeuronStream::load_resident. `hot` may be null where there are none.
  base::Status load(bool (*progress)(void* context, uint64_t done, uint64_t total), void* context,
                    HotSink* hot = nullptr);
  uint64_t load_bytes() const;
  /// Times a few reads of absent bundles, small and large, and merges from now on what costs less as one
  /// read. Call it after load(). Errors: those of reads.
  base::Status measure_merging();

  /// Rows [begin, rows) of a set, from `data` on.
  struct Prefix {
    const uint8_t* data;
    uint32_t rows;
    uint32_t stride;
    uint32_t begin = 0;
  };
  Prefix prefix(uint32_t set) const {
    return {prefix_data_[set], plan_.prefix[set], layers_[layer_of_[set]].bytes, plan_.hot[set]};
  }
  bool in_prefix(uint32_t set, uint32_t neuron) const {
    return neuron < plan_.prefix[set] && neuron >= plan_.hot[set];
  }
  uint32_t set_of(size_t layer, size_t expert) const {
    return first_set_[layer] + static_cast<uint32_t>(expert);
  }

  /// Staging is now this layer's. Nothing, if it is already.
  void begin_layer(size_t layer);
  /// The layer is computed: what was read for it is admitted to the cache or forgotten. Optional: begin_layer
  /// does it for the one before. While it runs, no other call may.
  void retire();
  /// The bundle, if it is in memory.
  const uint8_t* find(uint32_t set, uint32_t neuron) const;
  /// Counts a use for the cache's warmth.
  void touch(uint32_t set, uint32_t neuron);
  /// Prepares reads for absent bundles of the present layer, ascending within `set`; takes as many as staging
  /// holds and returns how many. They start with submit(). Those already on their way count as taken.
  size_t request(uint32_t set, std::span<const uint32_t> neurons);
  /// The same, at lower priority, for what the present layer may want.
  size_t request_ahead(uint32_t set, std::span<const uint32_t> neurons);
  bool has_prepared() const { return submitted_ < run_count_; }
  /// May be called from any thread while no other call but find() runs.
  void submit();
  /// Empties staging for more requests. Requires: nothing that it holds is used any more.
  base::Status recycle_present();
  /// Runs completions; with `wait`, sleeps for one if reads are under way. Errors: those of reads.
  base::Status poll(bool wait);
  /// Until everything that was requested for the present layer is there. Errors: those of reads.
  base::Status wait_for_requested();
  void tick() { cache_->tick(); }
  /// The pass was given up: everything on its way is read out and forgotten.
  void restart();

  /// Gives the cache more or less memory. Errors: kResources.
  base::Status resize_cache(size_t bytes);
  const BundleStats& stats() const { return stats_; }
  void count_uses(uint64_t prefix_uses, uint64_t cache_uses, uint64_t misses) {
    stats_.prefix_uses += prefix_uses;
    stats_.cache_uses += cache_uses;
    stats_.misses += misses;
  }

 private:
  // One read of neighbouring bundles.
  struct Run {
    async_io::ReadOp op;
    BundleStream* stream = nullptr;
    bool complete = false;
  };
  struct Staged {
    uint32_t neuron;  // counted over all sets
    uint32_t run;
    uint32_t at;  // in the run, from the first byte wanted
  };

  BundleStream(const neuron_store::WeightStore& store, async_io::ReadQueue& queue,
               std::vector<BundleLayer> layers, std::span<const float> frequency, BundlePlan plan);
  base::Status reserve(neuron_cache::Arena& arena);
  size_t prepare(uint32_t set, std::span<const uint32_t> neurons, async_io::Priority priority);
  size_t prefix_bytes(size_t set) const;
  base::Status load_range(uint32_t set, uint32_t begin, uint32_t end, HotSink* hot);
  base::Result<int64_t> time_reads(uint64_t bytes, size_t count);
  void recycle();
  static void read_done(async_io::ReadOp* op);

  uint64_t merge_gap_ = 0;
  uint64_t random_ = 1;
  const neuron_store::WeightStore& store_;
  async_io::ReadQueue& queue_;
  std::vector<BundleLayer> layers_;
  BundlePlan plan_;
  std::vector<uint32_t> first_set_;     // by layer
  std::vector<uint32_t> layer_of_;      // by set
  std::vector<uint32_t> first_neuron_;  // by set
  std::vector<uint8_t*> prefix_data_;   // by set
  neuron_cache::Region prefix_region_;
  neuron_cache::Region cache_region_;
  neuron_cache::Region staging_region_;
  std::unique_ptr<neuron_cache::BundleCache> cache_;
  // Staging: of `runs_` as many as are prepared, submitted and complete.
  std::vector<Run> runs_;
  uint32_t run_count_ = 0;
  uint32_t submitted_ = 0;
  uint32_t complete_ = 0;
  size_t staged_bytes_ = 0;
  std::vector<Staged> staged_;
  size_t layer_ = SIZE_MAX;
  std::vector<async_io::ReadOp*> batch_;
  base::Status error_;
  BundleStats stats_;
};

}  // namespace ganglion::neuron_stream

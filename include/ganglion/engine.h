// Opens a model under a memory budget, plans, loads, and makes sessions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ganglion/error.h"
#include "ganglion/session.h"
#include "ganglion/text.h"

namespace ganglion {

/// Parts of the sparse path of a pack, for ablation; each has what those before it have.
enum class SparseParts : unsigned char {
  kBundles,          ///< What is predicted is read bundle by bundle; a layer waits for all of its reads.
  kNeuronCache,      ///< Frequent neurons stay in memory, others are cached.
  kClusterPipeline,  ///< Clusters are computed as their bundles arrive.
  kAll,              ///< The next layer's likely neurons are read ahead.
};

struct EngineOptions {
  std::string model_path;  ///< A GGUF file, any shard of a split one, or a directory that holds one model.
  std::string memory = "auto";  ///< "64M", "4G", "600000000", "75%", "auto" or "min".
  int threads = 0;              ///< 0: one per physical core that we may use.
  size_t context = 0;           ///< Positions; 0: min(trained, 4096), lowered if the budget asks for it.
  size_t chunk = 0;             ///< Prompt tokens evaluated together; 0: planned.
  std::string kv_type = "f16";  ///< f16, q8_0 or f32.
  std::string isa;              ///< Kernel table by name; empty: the best one.
  bool io_uring = true;
  bool direct_io = true;
  bool react_to_pressure = true;  ///< Shrink caches when the system runs short of memory (PSI).
  bool exact = false;             ///< A pack: generate with all neurons, as the source would.
  uint64_t beside_bytes = 0;      ///< Of the budget: what others in this process will take (a draft model).
  SparseParts sparse_parts = SparseParts::kAll;
  /// "none", or an accelerator that computes a pack's most frequent neurons: "sim", ... These then contribute
  /// wherever their gates are open, no predictor being asked.
  std::string device = "none";
  /// How many of each layer (and expert), rounded up to blocks: one number, or one for each number of rows
  /// that the device knows (1, 2, 4, 8), ascending. Empty: planned, perhaps none.
  std::vector<uint32_t> hot_neurons;
  bool verify_bundles = false;  ///< A pack: compare bundles with their checksums as they are read.
  size_t logit_rows = 1;        ///< Rows whose logits are computed together (perplexity takes more).
  size_t sequences = 1;         ///< Sessions that the KV cache has room for, each with a full context.
  Overrides overrides;
};

struct MemoryItem {
  std::string name;
  uint64_t bytes = 0;
};

/// What a run will do, known before weights are read.
struct PlanSummary {
  uint64_t budget_bytes = 0;
  uint64_t planned_bytes = 0;  ///< Sum of `items`.
  std::vector<MemoryItem> items;
  uint64_t model_bytes = 0;  ///< Of the files.
  uint64_t resident_weight_bytes = 0;
  uint64_t streamed_bytes_per_token = 0;  ///< Dense weights read for each pass.
  uint64_t kv_full_bytes = 0;  ///< What the KV cache takes at the full context, other uses shrinking then.
  uint64_t expert_bytes_per_token = 0;  ///< Expert weights touched by a token, cached or not.
  uint64_t expert_bytes = 0;            ///< All experts.
  uint64_t expert_cache_bytes = 0;
  /// What makes generated tokens of a pack differ from exact ones: "predictors", "cats:0.50"; empty: nothing
  /// but the rounding of down rows.
  std::string sparsity;
  // Of a pack, as calibration lets expect it for a generated token:
  uint64_t sparse_bytes_per_token = 0;           ///< Weights touched; 0: all neurons are used.
  uint64_t sparse_streamed_bytes_per_token = 0;  ///< Of those, what is read for every token.
  double neurons_per_token = 0;                  ///< Predicted to be active.
  double neurons_read_per_token = 0;             ///< Of those, neither in memory for good nor cached.
  uint64_t neuron_read_bytes = 0;                ///< Of one such read.
  uint64_t multiply_adds_per_token = 0;          ///< Of weight matrices, the head excluded.
  uint64_t expert_multiply_adds_per_token = 0;   ///< Of those, experts'.
  size_t expert_layers = 0;                      ///< Layers that have experts.
  uint64_t attention_multiply_adds = 0;          ///< Of a token with each earlier position, in all layers.
  std::string device;  ///< What a device does, in a line, or why it does nothing; empty: none was asked for.
  std::vector<uint32_t> hot_neurons;  ///< That it computes, of each layer or expert: by rows, ascending.
  std::string weight_type;            ///< The type that most of them have.
  std::string first_file;             ///< A file of the model.
  bool streams = false;
  size_t context = 0;
  size_t context_trained = 0;
  size_t chunk = 0;
  int threads = 0;
  std::string isa;
  std::string kv_type;
  std::string io;  ///< "io_uring" or "pread pool".
  std::string architecture;
  std::vector<std::string> notes;  ///< One line each: what was lowered, what is odd.
};

/// Totals since loading.
struct EngineStats {
  uint64_t device_bytes = 0;  ///< Read from storage.
  uint64_t cached_bytes = 0;  ///< Taken from the page cache.
  uint64_t reads = 0;
  uint64_t expert_hits = 0;  ///< Expert blocks.
  uint64_t expert_misses = 0;
  uint64_t ahead_reads = 0;    ///< Expert blocks read before they were known to be needed...
  uint64_t ahead_used = 0;     ///< ...and then needed...
  uint64_t ahead_wasted = 0;   ///< ...or evicted unused, counted when they are read again.
  bool look_ahead_on = false;  ///< Kept only while it is measured to pay.
  int64_t io_wait_ns = 0;      ///< Time in which nothing could be computed.
  int64_t pass_ns = 0;         ///< Time in passes over the model; less io_wait_ns, it is that of computing.
  // Of a pack: neurons that were predicted active...
  uint64_t neurons_resident = 0;    ///< ...and are always in memory,
  uint64_t neurons_cached = 0;      ///< ...were cached, or read ahead,
  uint64_t neurons_read = 0;        ///< ...had to be read.
  uint64_t neurons_ahead = 0;       ///< Neurons read before they were predicted...
  uint64_t neurons_ahead_used = 0;  ///< ...and then predicted.
  // Of a device:
  uint64_t hot_calls = 0;
  uint64_t hot_calls_ahead = 0;  ///< Of those, made before the processor began the layer's other neurons.
  uint64_t hot_recomputed = 0;   ///< Calls that failed: the processor has computed the same neurons.
  int64_t hot_wait_ns = 0;       ///< Time in which the processor waited for it.
  std::string device_lost = {};  ///< Why it was given up, the processor going on alone; empty: it was not.
};

/// What the predictor of a pack's layer found, summed over neurons, tokens and experts that were used.
struct NeuronRecall {
  uint64_t fired = 0;      ///< Neurons that contribute,
  uint64_t found = 0;      ///< of those, that were predicted;
  uint64_t predicted = 0;  ///< all that were.
  double mass = 0;         ///< Sum of |act(gate) up| of what fired,
  double found_mass = 0;   ///< and of what was found.
};

/// What the process has used so far at most.
struct MemoryPeak {
  uint64_t resident_bytes = 0;  ///< VmHWM.
  uint64_t cgroup_bytes = 0;    ///< The memory cgroup's own maximum; 0 where none is readable.
};
MemoryPeak memory_peak();

/// Asks the kernel to end this process first when memory runs out, so that others survive. Needs no rights.
void prefer_as_memory_victim();

/// Thread-safe; evaluations of its sessions take turns.
class Engine {
 public:
  /// Reads and checks the header, and plans. Reads no weights.
  /// Errors: kModelFile, kUnsupported, kInvalidArgument (an option), kResources (the budget is too small; the
  /// message says what would do).
  static Result<std::unique_ptr<Engine>> open(const EngineOptions& options);
  virtual ~Engine() = default;

  virtual const PlanSummary& plan() const = 0;
  virtual const TextModel& text() const = 0;

  /// Reads the resident weights. `progress` (or null) is told done and total bytes and may return false to
  /// stop (kCancelled). Errors: kIo, kModelFile, kResources.
  virtual Status load(bool (*progress)(void* context, uint64_t done, uint64_t total), void* context) = 0;

  /// Requires: loaded. Errors: kResources (another session holds the KV pages).
  virtual Result<std::unique_ptr<Session>> new_session() = 0;
  /// Appends one token to each of several sessions of this engine, evaluated in one pass; each gets the bits
  /// that it would get alone. Errors: those of Session::evaluate, of whichever session; kInvalidArgument,
  /// kContextOverflow and kResources leave all as they were, after others all are poisoned.
  virtual Status evaluate_batch(std::span<Session* const> sessions, std::span<const int32_t> tokens,
                                Phase phase) = 0;
  virtual EngineStats stats() const = 0;
  /// Between evaluations: tells `sink` (null: nobody any more) of all routing from now on. Requires: loaded;
  /// `sink` outlives its use. Cost: none without a sink.
  virtual void set_routing_sink(RoutingSink* sink) = 0;
  /// Between evaluations: from now on (until null) sparse passes compute all neurons to see which fire, and
  /// add what predictors found to `layers`, one for each; those of layers without a predictor stay 0. Results
  /// stay the same, bit for bit. Requires: loaded; `layers` outlives its use.
  virtual void set_recall_sink(std::vector<NeuronRecall>* layers) = 0;

  /// Shrinks or grows caches between tokens. Requires: loaded. Errors: kResources if `bytes` is below the
  /// minimum, the present budget staying; kIo and kModelFile from reading weights.
  virtual Status set_budget(uint64_t bytes) = 0;
};

}  // namespace ganglion

// What an open model consists of, and how it is put together: header, plan, memory, stream, forward pass.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "accelerator/backend.h"
#include "engine/bundle_checks.h"
#include "engine/device_times.h"
#include "engine/forward.h"
#include "engine/saved_sequence.h"
#include "format/gguf.h"
#include "ganglion/engine.h"
#include "neuron_cache/arena.h"
#include "planner/plan.h"

namespace ganglion::engine {

/// Members in the order of their making; later ones point to earlier ones.
class Runtime {
 public:
  /// `device`: in place of the one that the options name.
  static base::Result<std::unique_ptr<Runtime>> open(const EngineOptions& options,
                                                     std::unique_ptr<accelerator::Backend> device = nullptr);
  base::Status load(bool (*progress)(void*, uint64_t, uint64_t), void* context);

  /// Between passes. Errors: kResources below the minimum (nothing changes then); those of reading.
  base::Status set_budget(uint64_t bytes);
  /// Makes room for `missing` more KV pages, as far as the full context allows, at the cost of weights in
  /// memory.
  base::Status grow_kv(size_t missing);
  /// Before passes of up to `rows` rows (at most the chunk): scratch takes memory from weights, or gives it
  /// back.
  base::Status make_room(size_t rows);
  /// Between passes: once the device is lost, its memory goes to the neuron cache.
  void react_to_device();
  /// Shrinks caches if the system is short of memory; looks at most once a second.
  void react_to_pressure();

  /// What saved keys and values are tied to; read from the model once. Errors: kIo, kModelFile.
  base::Result<const KvOrigin*> kv_origin();

  const PlanSummary& summary() const { return summary_; }
  const TextModel& text() const { return *text_; }
  const model_config::ModelConfig& config() const { return config_; }
  const planner::Plan& plan() const { return plan_; }
  model::KvPages& kv_pages() { return *kv_pages_; }
  ForwardPass& forward() { return *forward_; }
  neuron_stream::NeuronStream& stream() { return *stream_; }
  neuron_stream::BundleStream* bundles() { return bundles_.get(); }
  const HotClusters* hot() const { return hot_.get(); }
  bool packed() const { return config_.pack.present; }
  /// Whether generated tokens take predicted neurons alone.
  bool sparse() const { return packed() && !options_.exact; }
  /// Rows of a pass at most.
  size_t most_rows(bool exact) const {
    return exact && !config_.pack.slim ? chunk() : std::min(chunk(), kSparseRows);
  }
  /// After a pass that was given up.
  void restart_reading() {
    stream_->restart();
    if (bundles_ != nullptr) bundles_->restart();
  }
  /// Held during an evaluation.
  std::mutex& mutex() { return mutex_; }
  bool loaded() const { return forward_ != nullptr; }
  size_t chunk() const { return plan_.chunk; }
  /// Time in passes, counted by their callers under the mutex.
  void add_pass_ns(int64_t ns) { pass_ns_ += ns; }
  int64_t pass_ns() const { return pass_ns_; }

 private:
  explicit Runtime(const EngineOptions& options) : options_(options) {}
  base::Status read_header();
  base::Status choose_machine();
  base::Status open_store();
  base::Status make_plan();
  base::Result<uint64_t> budget();
  uint64_t process_bytes() const;
  planner::ModelSizes model_sizes();
  void summarise();
  void summarise_matrices();
  void note_cached_files();
  void summarise_neurons();
  void leave_out_parts(planner::Plan* plan) const;
  base::Status apply(planner::Plan next);
  base::Status resize_scratch();
  base::Status load_vectors(std::span<uint8_t> memory);
  neuron_stream::StreamConfig stream_config() const;
  // Of a pack.
  base::Status read_neurons();
  std::string sparsity() const;
  std::vector<neuron_stream::BundleLayer> bundle_layers() const;
  std::vector<neuron_store::BlockId> pass_order() const;
  bool covered_by_prefix(neuron_store::BlockId block) const;
  bool is_unused(neuron_store::BlockId id) const {
    return packed() && block_use_[id] == planner::BlockUse::kNone;
  }
  base::Status load_bundles(bool (*progress)(void*, uint64_t, uint64_t), void* context);
  // Of a device.
  base::Status open_device(std::unique_ptr<accelerator::Backend> device);
  void describe_hot_sets();
  base::Status test_device();
  base::Status plan_device(const planner::PlanRequest& request);
  base::Result<std::vector<uint32_t>> wanted_blocks(const planner::PlanRequest& request);
  base::Result<std::vector<uint32_t>> planned_blocks(const planner::PlanRequest& request);
  base::Status use_hot_blocks(const std::vector<uint32_t>& blocks);
  void summarise_device();
  base::Status make_hot_clusters();
  base::Status start_hot_clusters();
  base::Status give_gates(uint32_t set, size_t layer, uint32_t expert);
  base::Status verify_reads();
  base::Status verify_resident_bundles();

  EngineOptions options_;
  std::unique_ptr<format::GgufModel> file_;
  std::unique_ptr<TextModel> text_;
  model_config::ModelConfig config_;
  model::WeightMap weights_;
  kernels::KvType kv_type_ = kernels::KvType::kF16;
  const kernels::KernelTable* kernels_ = nullptr;
  std::unique_ptr<platform::ThreadPool> threads_;
  std::unique_ptr<BundleChecks> checks_;  // Null: bundles are trusted.
  std::unique_ptr<neuron_store::WeightStore> store_;
  std::unique_ptr<async_io::ReadQueue> queue_;
  std::vector<uint32_t> store_index_;  // by MatrixRef::index
  neuron_store::BlockId dense_blocks_ = 0;
  std::vector<uint32_t> dense_block_bytes_;
  std::vector<uint32_t> expert_group_;         // by expert block
  std::vector<planner::BlockUse> block_use_;   // by dense block; of a pack
  std::vector<float> frequencies_;             // of all packed neurons, set by set
  std::vector<std::vector<uint16_t>> orders_;  // by layer
  std::vector<const uint16_t*> order_data_;
  std::vector<OpenGates> open_gates_;  // by layer
  std::vector<planner::NeuronSet> neuron_sets_;
  std::unique_ptr<accelerator::Backend> device_;  // Null: none, not used, or lost.
  DeviceTimes device_times_;
  HotLayout hot_layout_;
  uint64_t hot_bytes_ = 0;
  std::string device_line_;
  size_t kv_page_bytes_ = 0;
  ForwardContext forward_context_;
  planner::Plan plan_;
  PlanSummary summary_;
  std::vector<std::string> notes_;

  std::unique_ptr<neuron_cache::Arena> arena_;
  neuron_cache::Region fixed_region_;  // vectors, then scratch, which changes its size
  neuron_cache::Region kv_region_;
  std::vector<const float*> vectors_;
  std::unique_ptr<neuron_stream::NeuronStream> stream_;
  std::unique_ptr<neuron_stream::BundleStream> bundles_;
  std::unique_ptr<HotClusters> hot_;
  std::unique_ptr<Multiplier> multiplier_;
  std::unique_ptr<model::KvPages> kv_pages_;
  std::unique_ptr<ForwardPass> forward_;
  std::optional<KvOrigin> kv_origin_;
  int64_t pass_ns_ = 0;
  int64_t last_look_ns_ = 0;
  int64_t last_shrink_ns_ = 0;
  std::mutex mutex_;
};

/// The text side of an opened header; frees the vocabulary's arrays in it.
base::Result<std::unique_ptr<TextModel>> make_text_model(base::Metadata& metadata);

/// Replaces keys. Errors: kInvalidArgument.
base::Status apply_overrides(const Overrides& overrides, base::Metadata* metadata);

/// Bytes that a `--mem` text means under the limits of this machine; 0 for "min".
/// Errors: kInvalidArgument for a text that is none.
base::Result<uint64_t> parse_budget(const std::string& text);

}  // namespace ganglion::engine

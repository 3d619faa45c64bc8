// What a pack adds to the runtime: its neurons' frequencies and order, their share of memory, their loading.
#include <algorithm>

#include "base/units.h"
#include "engine/runtime.h"
#include "engine/verifying_queue.h"

namespace ganglion::engine {

using base::Code;
using base::Status;
using format::TensorInfo;
using model::BundleRef;
using model::LayerWeights;
using neuron_store::BlockId;
using planner::BlockUse;

// Fills block_use_, frequencies_, neuron_sets_ and orders_. Errors: kModelFile for an order that is none.
Status Runtime::read_neurons() {
  block_use_.assign(dense_blocks_, BlockUse::kAll);
  const BlockUse use = config_.pack.slim ? BlockUse::kNone : BlockUse::kExact;
  orders_.resize(weights_.layers.size());
  std::vector<size_t> set_sizes;
  std::vector<size_t> set_layers;
  std::vector<uint64_t> set_bundle_bytes;
  for (size_t layer = 0; layer < weights_.layers.size(); ++layer) {
    const LayerWeights& w = weights_.layers[layer];
    const BundleRef& b = w.bundle;
    if (!b.present()) continue;
    for (const model::MatrixRef* matrix : {&b.rows, &w.down, &w.expert_down}) {
      // The down matrix of a shared expert is used by all passes.
      if (!matrix->present() || (matrix == &w.down && config_.layers[layer].moe)) continue;
      if (matrix == &b.rows && b.rows_are_gates()) continue;
      for (uint32_t slice = 0; slice < matrix->slices; ++slice) {
        const neuron_store::BlockRange range = store_->blocks_of(store_index_[matrix->index], slice);
        std::fill(block_use_.begin() + range.begin, block_use_.begin() + range.end, use);
      }
    }
    const size_t count = size_t{b.rows.slices} * b.rows.rows;
    const TensorInfo& frequency = file_->tensors()[b.frequency_tensor];
    const size_t before = frequencies_.size();
    frequencies_.resize(before + count);
    GANGLION_RETURN_IF_ERROR(
        store_->file(frequency.shard)
            .read_exact(frequency.offset,
                        {reinterpret_cast<uint8_t*>(&frequencies_[before]), count * sizeof(float)}));
    const TensorInfo& order = file_->tensors()[b.order_tensor];
    std::vector<int32_t> numbers(count);
    GANGLION_RETURN_IF_ERROR(
        store_->file(order.shard)
            .read_exact(order.offset, {reinterpret_cast<uint8_t*>(numbers.data()), count * sizeof(int32_t)}));
    std::vector<bool> seen;
    for (size_t i = 0; i < count; ++i) {
      if (i % b.rows.rows == 0) seen.assign(b.rows.rows, false);
      const auto number = static_cast<uint32_t>(numbers[i]);
      if (number >= b.rows.rows || seen[number]) {
        return Status(Code::kModelFile,
                      base::format("tensor '%s' names neuron %d, which is none of %u or named twice",
                                   order.name.c_str(), numbers[i], b.rows.rows));
      }
      seen[number] = true;
      orders_[layer].push_back(static_cast<uint16_t>(number));
      float& f = frequencies_[before + i];
      if (!(f >= 0 && f <= 1) || (i % b.rows.rows != 0 && f > frequencies_[before + i - 1])) {
        return Status(Code::kModelFile,
                      "tensor '" + frequency.name + "' does not hold descending frequencies");
      }
    }
    for (uint32_t e = 0; e < b.rows.slices; ++e) {
      set_sizes.push_back(b.rows.rows);
      set_layers.push_back(layer);
      set_bundle_bytes.push_back(b.bytes);
    }
  }
  size_t at = 0;
  for (size_t set = 0; set < set_sizes.size(); at += set_sizes[set++]) {
    neuron_sets_.push_back({set_bundle_bytes[set],
                            std::span<const float>(frequencies_).subspan(at, set_sizes[set]),
                            set_layers[set]});
  }
  if (neuron_sets_.empty())
    return Status(Code::kModelFile, "a pack without a packed layer (ganglion.pack.stride)");
  if (sparse() && !config_.pack.sparsify.empty()) {
    const auto divergence = static_cast<double>(config_.pack.divergence);
    notes_.push_back(base::format(
        "answers are lossy (%s): the smallest of the SiLU activations are left out%s - --exact takes all",
        sparsity().c_str(),
        divergence < 0 ? "" : base::format(", at a KL divergence of %.4f nat", divergence).c_str()));
  }
  for (const auto& order : orders_) order_data_.push_back(order.empty() ? nullptr : order.data());
  return base::ok_status();
}

// What a generated token is expected to touch and to read.
void Runtime::summarise_neurons() {
  PlanSummary& s = summary_;
  std::vector<bool> resident(dense_blocks_, false);
  for (const uint32_t id : plan_.dense_resident) resident[id] = true;
  // Of experts, a token touches what belongs to those it is routed to.
  std::vector<bool> of_expert(dense_blocks_, false);
  for (const LayerWeights& w : weights_.layers) {
    for (const model::MatrixRef* matrix : {&w.bundle.gates, &w.bundle.predict_low, &w.bundle.predict_out}) {
      for (uint32_t e = 0; matrix->present() && matrix->slices > 1 && e < matrix->slices; ++e) {
        const neuron_store::BlockRange range = store_->blocks_of(store_index_[matrix->index], e);
        std::fill(of_expert.begin() + range.begin, of_expert.begin() + range.end, true);
      }
    }
  }
  uint64_t by_expert[2] = {0, 0};  // Streamed, and in all.
  for (BlockId id = 0; id < dense_blocks_; ++id) {
    if (block_use_[id] != BlockUse::kAll) continue;
    const uint64_t bytes = dense_block_bytes_[id];
    (of_expert[id] ? by_expert[1] : s.sparse_bytes_per_token) += bytes;
    if (!resident[id]) (of_expert[id] ? by_expert[0] : s.sparse_streamed_bytes_per_token) += bytes;
  }
  if (by_expert[1] > 0) {
    s.sparse_streamed_bytes_per_token += by_expert[0] / config_.moe.expert_count * config_.moe.used_count;
    s.sparse_bytes_per_token += by_expert[1] / config_.moe.expert_count * config_.moe.used_count;
  }
  s.sparsity = sparsity();
  double bytes = 0;
  size_t set = 0;
  for (const LayerWeights& w : weights_.layers) {
    const BundleRef& b = w.bundle;
    if (!b.present()) continue;
    // A predicted neuron costs its gate, an active one the rest. Without a predictor gates are dense.
    const double over = b.gates.present() ? 1 : static_cast<double>(config_.pack.over_prediction);
    const auto gate_bytes = static_cast<double>(b.up_offset);
    const auto other_bytes = static_cast<double>(b.bytes - b.up_offset);
    s.neuron_read_bytes = std::max<uint64_t>(s.neuron_read_bytes, base::round_up(b.stride, 4096));
    for (uint32_t e = 0; e < b.rows.slices; ++e, ++set) {
      const std::span<const float> frequency = neuron_sets_[set].frequency;
      const uint32_t in_memory = std::max(plan_.neuron_prefix[set], plan_.neuron_warm[set]);
      // What a device computes costs the processor nothing.
      for (size_t i = neuron_sets_[set].hot; i < frequency.size(); ++i) {
        const double active = static_cast<double>(frequency[i]);
        const double predicted = std::min(1.0, active * over);
        bytes += predicted * gate_bytes + active * other_bytes;
        s.neurons_per_token += predicted;
        // Thresholds of rare neurons are priced by reads: about as many are predicted as fire.
        if (i >= in_memory) s.neurons_read_per_token += active;
      }
    }
  }
  s.sparse_bytes_per_token += static_cast<uint64_t>(bytes);
}

std::string Runtime::sparsity() const {
  if (!sparse()) return "";
  if (!config_.pack.sparsify.empty())
    return base::format("%s:%.2f", config_.pack.sparsify.c_str(), static_cast<double>(config_.pack.left_out));
  const bool predicts = std::any_of(weights_.layers.begin(), weights_.layers.end(),
                                    [](const LayerWeights& w) { return w.bundle.predict_low.present(); });
  return predicts ? "predictors" : "";
}

// For ablation: no neuron stays in memory.
void Runtime::leave_out_parts(planner::Plan* plan) const {
  if (!packed() || options_.sparse_parts >= SparseParts::kNeuronCache) return;
  for (size_t set = 0; set < neuron_sets_.size(); ++set) plan->neuron_prefix[set] = neuron_sets_[set].hot;
  plan->neuron_warm = plan->neuron_prefix;
  plan->neuron_prefix_bytes = plan->neuron_cache_bytes = 0;
}

std::vector<neuron_stream::BundleLayer> Runtime::bundle_layers() const {
  std::vector<neuron_stream::BundleLayer> layers;
  for (const LayerWeights& w : weights_.layers) {
    const BundleRef& b = w.bundle;
    if (!b.present()) {
      layers.push_back({});
      continue;
    }
    const TensorInfo& tensor = file_->tensors()[b.tensor];
    layers.push_back({tensor.shard, tensor.offset, b.stride, b.bytes, b.rows.rows, b.rows.slices});
  }
  return layers;
}

// Dense blocks in the order in which a pass uses them: as they are numbered, but packed experts one by one.
std::vector<BlockId> Runtime::pass_order() const {
  std::vector<BlockId> order;
  std::vector<bool> placed(dense_blocks_, false);
  std::vector<const LayerWeights*> owner(store_index_.size(), nullptr);
  for (const LayerWeights& w : weights_.layers) {
    if (!w.bundle.present() || !w.expert_down.present()) continue;
    const model::MatrixRef& first = w.bundle.gates.present() ? w.bundle.gates : w.bundle.rows;
    owner[store_index_[first.index]] = &w;
  }
  for (BlockId id = 0; id < dense_blocks_; ++id) {
    if (placed[id]) continue;
    const LayerWeights* w = owner[store_->block(id).matrix];
    if (w == nullptr) {
      order.push_back(id);
      continue;
    }
    for (uint32_t e = 0; e < w->expert_down.slices; ++e) {
      for (const model::MatrixRef* matrix : {&w->bundle.gates, &w->bundle.rows, &w->expert_down}) {
        if (!matrix->present()) continue;
        const neuron_store::BlockRange range = store_->blocks_of(store_index_[matrix->index], e);
        for (BlockId block = range.begin; block < range.end; ++block) {
          order.push_back(block);
          placed[block] = true;
        }
      }
    }
  }
  return order;
}

// Whether all rows of a block of bundles are in memory for good.
bool Runtime::covered_by_prefix(BlockId id) const {
  if (!packed() || block_use_[id] == BlockUse::kAll) return false;
  const neuron_store::Block block = store_->block(id);
  size_t set = 0;
  for (const LayerWeights& w : weights_.layers) {
    if (!w.bundle.present()) continue;
    if (store_index_[w.bundle.rows.index] == block.matrix) {
      return block.row_begin >= neuron_sets_[set + block.slice].hot &&
             block.row_begin + block.row_count <= plan_.neuron_prefix[set + block.slice];
    }
    set += w.bundle.rows.slices;
  }
  return false;
}

Status Runtime::load_bundles(bool (*progress)(void*, uint64_t, uint64_t), void* context) {
  std::vector<uint32_t> hot;
  for (const planner::NeuronSet& set : neuron_sets_) hot.push_back(set.hot);
  GANGLION_ASSIGN_OR_RETURN(
      bundles_, neuron_stream::BundleStream::create(*store_, *queue_, *arena_, bundle_layers(), frequencies_,
                                                    {.prefix = plan_.neuron_prefix,
                                                     .warm = plan_.neuron_warm,
                                                     .hot = std::move(hot),
                                                     .cache_bytes = plan_.neuron_cache_bytes,
                                                     .later_bytes = plan_.hot_bytes,
                                                     .staging_bytes = plan_.neuron_staging_bytes}));
  if (device_ != nullptr) GANGLION_RETURN_IF_ERROR(make_hot_clusters());
  GANGLION_RETURN_IF_ERROR(bundles_->load(progress, context, hot_.get()));
  if (device_ != nullptr) GANGLION_RETURN_IF_ERROR(start_hot_clusters());
  if (summary_.neurons_read_per_token > 0) GANGLION_RETURN_IF_ERROR(bundles_->measure_merging());
  open_gates_.clear();
  for (const LayerWeights& w : weights_.layers) {
    const model::VectorRef& threshold = w.bundle.gate_threshold;
    open_gates_.push_back(threshold.present() ? open_silu_gates(*vectors_[threshold.index])
                                              : OpenGates{.above = config_.ffn_threshold});
  }
  forward_context_.open_gates = open_gates_;
  forward_context_.bundles = bundles_.get();
  forward_context_.hot = hot_.get();
  forward_context_.orders = order_data_;
  return base::ok_status();
}

// From now on bundles are compared with their checksums as they are read.
Status Runtime::verify_reads() {
  if (!packed()) {
    return Status(Code::kInvalidArgument,
                  "'" + options_.model_path + "' is no pack: it has no bundles to verify");
  }
  GANGLION_ASSIGN_OR_RETURN(BundleChecks checks, BundleChecks::open(*file_, weights_));
  checks_ = std::make_unique<BundleChecks>(std::move(checks));
  queue_ = make_verifying_queue(std::move(queue_), *store_, static_cast<uint32_t>(file_->shards().size()),
                                *checks_);
  notes_.push_back("each bundle is compared with its checksum as it is read");
  return base::ok_status();
}

// What exact passes keep of bundles may have come from the page cache, past the queue.
Status Runtime::verify_resident_bundles() {
  for (const LayerWeights& w : weights_.layers) {
    if (!w.bundle.present()) continue;
    const uint32_t shard = file_->tensors()[w.bundle.tensor].shard;
    for (uint32_t slice = 0; slice < w.bundle.rows.slices; ++slice) {
      const neuron_store::BlockRange range = store_->blocks_of(store_index_[w.bundle.rows.index], slice);
      for (BlockId id = range.begin; id < range.end; ++id) {
        if (!stream_->is_resident(id)) continue;
        const neuron_store::Block block = store_->block(id);
        const uint8_t* data = stream_->try_pin(id);
        const Status status = checks_->check(shard, block.offset, {data, block.bytes});
        stream_->unpin(id);
        GANGLION_RETURN_IF_ERROR(status);
      }
    }
  }
  return base::ok_status();
}

}  // namespace ganglion::engine

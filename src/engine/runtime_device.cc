// What a device adds to the runtime: whether and for how many neurons it is used, its memory, its loss.
#include <algorithm>
#include <utility>

#include "accelerator/open_backend.h"
#include "accelerator/self_test.h"
#include "base/units.h"
#include "engine/runtime.h"

namespace ganglion::engine {

using accelerator::Activation;
using accelerator::Backend;
using base::Code;
using base::Result;
using base::Status;
using model::BundleRef;
using model_config::FfnActivation;

namespace {

// Neurons of a block: at least this many blocks of a set, as far as the device's rows allow.
constexpr uint32_t kBlocksOfSet = 8;
constexpr uint32_t kMostBlockNeurons = 128;
// Of the memory for frequent neurons, the device may have three quarters: what is predicted needs some too.
constexpr uint64_t kRoomParts = 4;

std::optional<Activation> activation_of(FfnActivation activation) {
  if (activation == FfnActivation::kRelu) return Activation::kRelu;
  if (activation == FfnActivation::kDRelu) return Activation::kDRelu;
  if (activation == FfnActivation::kSilu) return Activation::kSilu;
  return std::nullopt;
}

std::string time_text(double ns) {
  return ns < 9.95e5 ? base::format("%.1f us", ns / 1e3) : base::format("%.1f ms", ns / 1e6);
}

}  // namespace

Status Runtime::open_device(std::unique_ptr<Backend> device) {
  if (device == nullptr && options_.device == "none") return base::ok_status();
  device_ = std::move(device);
  if (device_ == nullptr) {
    GANGLION_ASSIGN_OR_RETURN(device_, accelerator::open_backend(options_.device));
  }
  const std::string unused = "device " + device_->capabilities().name + ": not used: ";
  if (!sparse()) {
    device_line_ = unused + (packed() ? "all neurons were asked for (--exact)" : "the model is no pack");
  } else if (config_.ungated) {
    device_line_ = unused + "hot neurons need gates, those of this model's FFN have none";
  } else {
    describe_hot_sets();
    if (hot_layout_.buckets.empty()) {
      device_line_ = unused + "it cannot compute the types and shapes of this pack's neurons";
    } else {
      GANGLION_RETURN_IF_ERROR(test_device());
      if (hot_layout_.buckets.empty()) device_line_ = unused + "it fails its self-test: " + notes_.back();
    }
  }
  if (device_line_.empty()) return base::ok_status();
  device_.reset();
  if (options_.hot_neurons.empty()) return base::ok_status();
  return Status(Code::kInvalidArgument, device_line_ + " - leave out --hot-neurons");
}

// hot_layout_ but for shares; without buckets if no set can be computed.
void Runtime::describe_hot_sets() {
  const accelerator::Capabilities& device = device_->capabilities();
  HotLayout& layout = hot_layout_;
  layout.dim = config_.dim;
  uint32_t least = UINT32_MAX;
  for (const model::LayerWeights& w : weights_.layers) {
    if (w.bundle.present()) least = std::min(least, w.bundle.rows.rows);
  }
  layout.block_neurons = static_cast<uint32_t>(
      base::round_up(std::clamp(least / kBlocksOfSet, 1U, kMostBlockNeurons), device.row_multiple));
  const std::optional<Activation> activation = activation_of(config_.activation);
  size_t count = 0;
  layout.most_units = 1;
  for (size_t l = 0; l < weights_.layers.size(); ++l) {
    const BundleRef& b = weights_.layers[l].bundle;
    if (!b.present()) continue;
    HotSet set = {.format = {b.gates.present() ? b.gates.type : b.rows.type, b.up_type, b.down_type},
                  .activation = activation.value_or(Activation::kRelu),
                  .threshold = config_.ffn_threshold,
                  .gates_apart = b.gates.present(),
                  .up_offset = b.up_offset,
                  .down_offset = b.down_offset};
    const bool known = activation.has_value() && config_.dim % device.dim_multiple == 0 &&
                       accelerator::contains(device.ffn_formats, set.format);
    for (uint32_t e = 0; e < b.rows.slices; ++e) {
      set.neurons =
          known && count < device.graph_limit ? b.rows.rows / layout.block_neurons * layout.block_neurons : 0;
      count += set.neurons > 0 ? 1 : 0;
      layout.sets.push_back(set);
    }
    if (config_.layers[l].moe) {
      layout.most_units = std::max<size_t>(
          layout.most_units, std::min<size_t>(b.rows.slices, kSparseRows * config_.moe.used_count));
    }
  }
  layout.most_rows = kSparseRows;
  // Larger batches than this engine is asked to expect are divided.
  std::span<const uint32_t> buckets = device.ffn_buckets;
  const size_t expected = std::max(options_.sequences, options_.logit_rows);
  while (buckets.size() > 1 && buckets[buckets.size() - 2] >= expected)
    buckets = buckets.first(buckets.size() - 1);
  layout.buckets = HotClusters::kept_buckets(buckets, count, device.graph_limit);
  layout.neurons.assign(layout.buckets.size(), 0);
}

// Leaves out the buckets that the device computes wrongly, and says so.
Status Runtime::test_device() {
  accelerator::SelfTestOptions options;
  for (const HotSet& set : hot_layout_.sets) {
    for (const uint32_t bucket : hot_layout_.buckets) {
      const accelerator::Operation operation = {
          .activation = set.activation, .format = set.format, .bucket = bucket};
      if (set.neurons > 0 && !accelerator::contains(options.only, operation))
        options.only.push_back(operation);
    }
  }
  const Result<accelerator::SelfTestReport> report = accelerator::self_test(*device_, options);
  const std::string name = "device " + device_->capabilities().name;
  if (!report.ok()) return report.status().with_context(name);
  for (const accelerator::MaskedOperation& masked : report.value().masked) {
    notes_.push_back(name + ": " + masked.why);
    std::erase(hot_layout_.buckets, masked.operation.bucket);
  }
  hot_layout_.neurons.assign(hot_layout_.buckets.size(), 0);
  return base::ok_status();
}

// Decides how much of the neurons the device takes; without it where that is none.
Status Runtime::plan_device(const planner::PlanRequest& request) {
  if (device_ == nullptr) return base::ok_status();
  const auto first = std::find_if(hot_layout_.sets.begin(), hot_layout_.sets.end(),
                                  [](const HotSet& set) { return set.neurons > 0; });
  const Result<DeviceTimes> times = measure_device(*device_,
                                                   {.layer = UINT32_MAX,
                                                    .dim = hot_layout_.dim,
                                                    .block_neurons = hot_layout_.block_neurons,
                                                    .format = first->format,
                                                    .activation = first->activation,
                                                    .threshold = first->threshold},
                                                   hot_layout_.buckets, *kernels_, *threads_);
  const std::string name = device_->capabilities().name;
  if (!times.ok()) return times.status().with_context("device " + name);
  device_times_ = times.value();
  GANGLION_ASSIGN_OR_RETURN(const std::vector<uint32_t> blocks,
                            options_.hot_neurons.empty() ? planned_blocks(request) : wanted_blocks(request));
  if (std::all_of(blocks.begin(), blocks.end(), [](uint32_t count) { return count == 0; })) {
    if (device_line_.empty()) device_line_ = "device " + name + ": not used: 0 hot neurons were asked for";
    device_.reset();
    return base::ok_status();
  }
  forward_context_.with_device = true;
  return use_hot_blocks(blocks);
}

// By bucket, as the option says.
Result<std::vector<uint32_t>> Runtime::wanted_blocks(const planner::PlanRequest&) {
  const std::vector<uint32_t>& wanted = options_.hot_neurons;
  const std::vector<uint32_t>& all = device_->capabilities().ffn_buckets;
  const bool ascends = std::is_sorted(wanted.begin(), wanted.end());
  if (!ascends || (wanted.size() != 1 && wanted.size() != all.size())) {
    return Status(
        Code::kInvalidArgument,
        base::format("%zu numbers of hot neurons are given: device %s takes one, or %zu ascending ones",
                     wanted.size(), device_->capabilities().name.c_str(), all.size()));
  }
  std::vector<uint32_t> blocks;
  for (const uint32_t bucket : hot_layout_.buckets) {
    const auto at = static_cast<size_t>(std::find(all.begin(), all.end(), bucket) - all.begin());
    const uint64_t neurons = wanted[wanted.size() == 1 ? 0 : at];
    blocks.push_back(static_cast<uint32_t>(base::ceil_div(neurons, hot_layout_.block_neurons)));
  }
  return blocks;
}

// By bucket, as measured times and the memory for frequent neurons let it pay. Says why not.
Result<std::vector<uint32_t>> Runtime::planned_blocks(const planner::PlanRequest& request) {
  GANGLION_ASSIGN_OR_RETURN(const planner::Plan without, planner::make_plan(model_sizes(), request));
  planner::HotShareRequest share = {.block_neurons = hot_layout_.block_neurons,
                                    .over_prediction = static_cast<double>(config_.pack.over_prediction),
                                    .hop_ns = device_times_.hop_ns,
                                    .times = device_times_.blocks};
  std::vector<planner::NeuronSet> sets;
  uint64_t block_bytes = 0;
  for (size_t s = 0; s < hot_layout_.sets.size(); ++s) {
    if (hot_layout_.sets[s].neurons == 0) continue;
    sets.push_back(neuron_sets_[s]);
    block_bytes += hot_layout_.block_neurons * neuron_sets_[s].bundle_bytes;
  }
  share.sets = sets;
  const uint64_t room = without.neuron_cache_bytes == 0
                            ? without.neuron_prefix_bytes
                            : without.neuron_prefix_bytes / kRoomParts * (kRoomParts - 1);
  share.most_blocks = static_cast<uint32_t>(room / block_bytes);
  planner::HotShare chosen;
  for (;; --share.most_blocks) {
    chosen = planner::choose_hot_share(share);
    HotLayout layout = hot_layout_;
    for (size_t b = 0; b < layout.neurons.size(); ++b)
      layout.neurons[b] = chosen.blocks[b] * layout.block_neurons;
    const Result<uint64_t> bytes = HotClusters::device_bytes(layout, device_->capabilities());
    if (share.most_blocks == 0 || (bytes.ok() && bytes.value() <= room)) break;
  }
  const std::string unused = "device " + device_->capabilities().name + ": not used: ";
  if (share.most_blocks == 0) {
    device_line_ = unused + "the budget has no room for frequent neurons";
  } else if (chosen.blocks.back() == 0) {
    device_line_ =
        unused + base::format("a call takes %s with one block, the processor %s for all neurons of a layer",
                              time_text(chosen.device_ns).c_str(), time_text(chosen.alone_ns).c_str());
  }
  return chosen.blocks;
}

Status Runtime::use_hot_blocks(const std::vector<uint32_t>& blocks) {
  HotLayout& layout = hot_layout_;
  for (size_t b = 0; b < blocks.size(); ++b) layout.neurons[b] = blocks[b] * layout.block_neurons;
  // What is not hot for few rows is the processor's, who has to be able to read it.
  if (!HotClusters::as_in_packs(layout, device_->capabilities()))
    layout.neurons.assign(layout.neurons.size(), layout.neurons.back());
  GANGLION_ASSIGN_OR_RETURN(hot_bytes_, HotClusters::device_bytes(layout, device_->capabilities()));
  uint32_t most = 0;
  uint32_t least_of = UINT32_MAX;
  size_t used = 0;
  for (size_t s = 0; s < layout.sets.size(); ++s) {
    neuron_sets_[s].hot = std::min(layout.neurons.back(), layout.sets[s].neurons);
    if (neuron_sets_[s].hot == 0) continue;
    ++used;
    most = std::max(most, static_cast<uint32_t>(neuron_sets_[s].frequency.size()));
    least_of = std::min(least_of, static_cast<uint32_t>(neuron_sets_[s].frequency.size()));
  }
  std::string shares;
  for (size_t b = 0; b < layout.buckets.size(); ++b) {
    if (b > 0 && layout.neurons[b] == layout.neurons[b - 1]) continue;
    shares += base::format("%s%u", b > 0 ? ", " : "", std::min(layout.neurons[b], most));
    if (b > 0) shares += base::format(" from %u rows on", layout.buckets[b - 1] + 1);
  }
  const bool moe = config_.moe.expert_count > 0;
  device_line_ =
      base::format("hot neurons dense on %s: %s of %u in %zu of %zu %s, %s there, a call each%s, hop %s",
                   device_->capabilities().name.c_str(), shares.c_str(), most, used, layout.sets.size(),
                   moe ? "experts" : "layers", base::format_bytes(hot_bytes_).c_str(),
                   moe ? " that a token uses" : "", time_text(device_times_.hop_ns).c_str());
  return base::ok_status();
}

void Runtime::summarise_device() {
  summary_.device = device_line_;
  if (forward_context_.with_device) summary_.hot_neurons = hot_layout_.neurons;
  if (plan_.hot_bytes > 0) summary_.items.push_back({"hot neurons on a device", plan_.hot_bytes});
}

Status Runtime::make_hot_clusters() {
  size_t s = 0;
  for (const model::LayerWeights& w : weights_.layers) {
    for (uint32_t e = 0; w.bundle.present() && e < w.bundle.rows.slices; ++e, ++s) {
      const model::VectorRef& threshold = w.bundle.gate_threshold;
      if (threshold.present()) hot_layout_.sets[s].threshold = *vectors_[threshold.index];
    }
  }
  Result<std::unique_ptr<HotClusters>> made = HotClusters::create(*device_, hot_layout_);
  if (!made.ok()) return made.status().with_context("device " + device_->capabilities().name);
  hot_ = made.take();
  return base::ok_status();
}

Status Runtime::start_hot_clusters() {
  uint32_t set = 0;
  for (size_t layer = 0; layer < weights_.layers.size(); ++layer) {
    const BundleRef& b = weights_.layers[layer].bundle;
    for (uint32_t e = 0; b.present() && e < b.rows.slices; ++e, ++set) {
      if (b.gates.present()) GANGLION_RETURN_IF_ERROR(give_gates(set, layer, e));
    }
  }
  return hot_->start().with_context("device " + device_->capabilities().name);
}

// Gates that are a matrix of their own.
Status Runtime::give_gates(uint32_t set, size_t layer, uint32_t expert) {
  const model::MatrixRef& gates = weights_.layers[layer].bundle.gates;
  const format::TensorInfo& tensor = file_->tensors()[weights_.matrices[gates.index]];
  const uint64_t row_bytes = base::row_bytes(gates.type, gates.cols);
  std::vector<uint8_t> rows(neuron_sets_[set].hot * row_bytes);
  if (rows.empty()) return base::ok_status();
  const uint64_t offset = tensor.offset + uint64_t{expert} * gates.rows * row_bytes;
  GANGLION_RETURN_IF_ERROR(
      store_->file(tensor.shard).read_exact(offset, rows).with_context("tensor '" + tensor.name + "'"));
  for (uint32_t n = 0; n < neuron_sets_[set].hot; ++n) hot_->take_gate(set, n, rows.data() + n * row_bytes);
  return base::ok_status();
}

void Runtime::react_to_device() {
  if (device_ == nullptr || hot_ == nullptr || !hot_->lost()) return;
  const std::string name = device_->capabilities().name;
  hot_->release();
  device_.reset();
  device_line_ = "device " + name + ": lost (" + hot_->stats().lost + "), hot neurons dense on the processor";
  notes_.push_back(device_line_);
  // Its memory goes to the neuron cache, as far as that works.
  Result<planner::Plan> next = planner::replan(model_sizes(), plan_, planner::unchanged(plan_));
  if (next.ok()) (void)apply(next.take());
  summarise();
}

}  // namespace ganglion::engine

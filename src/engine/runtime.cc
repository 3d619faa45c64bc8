#include "engine/runtime.h"

#include <fcntl.h>
#include <malloc.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <set>

#include "base/units.h"
#include "format/model_fingerprint.h"
#include "format/powerinfer.h"
#include "platform/clock.h"
#include "platform/cpu.h"
#include "platform/memory.h"

namespace ganglion::engine {

using base::Code;
using base::Result;
using base::Status;
using format::TensorInfo;
using model::LayerWeights;
using model::MatrixRef;
using neuron_store::BlockId;

namespace {

// A direct read of a block, widened at both ends, then fits a slot of 512 KiB.
constexpr size_t kBlockBytes = 504 * base::kKiB;

Result<kernels::KvType> parse_kv_type(const std::string& name, const model_config::ModelConfig& config) {
  const std::optional<kernels::KvType> type = kernels::kv_type_named(name);
  if (!type.has_value())
    return Status(Code::kInvalidArgument, "KV type '" + name + "' is not known - use f16, q8_0 or f32");
  if (*type != kernels::KvType::kQ8_0) return *type;
  if (config.key_dims % 32 != 0 || config.value_dims % 32 != 0) {
    return Status(
        Code::kInvalidArgument,
        base::format(
            "KV type q8_0 needs heads of a multiple of 32 elements, this model has %u and %u - use f16",
            config.key_dims, config.value_dims));
  }
  return *type;
}

std::set<uint32_t> expert_matrices(const model::WeightMap& weights) {
  std::set<uint32_t> experts;
  for (const LayerWeights& layer : weights.layers) {
    if (layer.bundle.present()) continue;  // Its neurons are cached, not its experts.
    for (const MatrixRef* matrix : {&layer.expert_gate, &layer.expert_up, &layer.expert_down}) {
      if (matrix->present()) experts.insert(matrix->index);
    }
  }
  return experts;
}

}  // namespace

Status apply_overrides(const Overrides& overrides, base::Metadata* metadata) {
  for (const auto& [key, text] : overrides) GANGLION_RETURN_IF_ERROR(metadata->set_override(key, text));
  return base::ok_status();
}

Result<std::unique_ptr<Runtime>> Runtime::open(const EngineOptions& options,
                                               std::unique_ptr<accelerator::Backend> device) {
  std::unique_ptr<Runtime> runtime(new Runtime(options));
  GANGLION_RETURN_IF_ERROR(runtime->read_header());
  GANGLION_RETURN_IF_ERROR(runtime->choose_machine());
  GANGLION_RETURN_IF_ERROR(runtime->open_store());
  GANGLION_RETURN_IF_ERROR(runtime->open_device(std::move(device)));
  GANGLION_RETURN_IF_ERROR(runtime->make_plan());
  return runtime;
}

Status Runtime::read_header() {
  GANGLION_ASSIGN_OR_RETURN(format::GgufModel file, format::GgufModel::open(options_.model_path));
  GANGLION_RETURN_IF_ERROR(format::refuse_powerinfer(file, options_.model_path));
  file_ = std::make_unique<format::GgufModel>(std::move(file));
  GANGLION_RETURN_IF_ERROR(apply_overrides(options_.overrides, &file_->metadata()));
  GANGLION_ASSIGN_OR_RETURN(config_, model_config::read_model_config(file_->metadata()));
  if (file_->tensors().empty()) {
    return Status(Code::kModelFile, "'" + options_.model_path + "' holds no tensors, only a vocabulary");
  }
  GANGLION_ASSIGN_OR_RETURN(weights_, model::map_weights(*file_, &config_));
  GANGLION_ASSIGN_OR_RETURN(text_, make_text_model(file_->metadata()));
  if (static_cast<uint32_t>(text_->vocab_size()) > config_.vocab) {
    return Status(Code::kModelFile,
                  base::format("the vocabulary has %d tokens, but token_embd.weight only %u rows",
                               text_->vocab_size(), config_.vocab));
  }
  for (const std::string& warning : text_->warnings()) notes_.push_back(warning);
  GANGLION_ASSIGN_OR_RETURN(kv_type_, parse_kv_type(options_.kv_type, config_));
  return base::ok_status();
}

Status Runtime::choose_machine() {
  kernels_ = kernels::select_table(options_.isa);
  if (kernels_ == nullptr) {
    std::string known;
    for (const kernels::KernelTable* table : kernels::available_tables()) {
      known += (known.empty() ? "" : ", ") + std::string(table->name);
    }
    return Status(Code::kInvalidArgument,
                  "no kernels '" + options_.isa + "' on this machine - available: " + known);
  }
  if (const std::string_view broken = kernels::self_test(*kernels_); !broken.empty()) {
    notes_.push_back("kernels " + std::string(kernels_->name) + " failed their self-test (" +
                     std::string(broken) + "): the slow reference is used");
    kernels_ = &kernels::reference_table();
  }
  constexpr int kMostThreads = 256;
  constexpr size_t kMostContext = size_t{1} << 24;
  constexpr size_t kMostChunk = size_t{1} << 14;
  if (options_.threads < 0 || options_.threads > kMostThreads) {
    return Status(Code::kInvalidArgument,
                  base::format("%d threads make no sense - use 1 to %d", options_.threads, kMostThreads));
  }
  if (options_.context > kMostContext || options_.chunk > kMostChunk) {
    return Status(Code::kInvalidArgument,
                  base::format("a context of %zu in chunks of %zu makes no sense - at most %zu and %zu",
                               options_.context, options_.chunk, kMostContext, kMostChunk));
  }
  threads_ = std::make_unique<platform::ThreadPool>(options_.threads > 0 ? options_.threads
                                                                         : platform::default_thread_count());
  std::string note;
  queue_ = async_io::make_read_queue(
      {.allow_io_uring = options_.io_uring, .allow_direct = options_.direct_io}, &note);
  if (!note.empty()) notes_.push_back(note);
  return base::ok_status();
}

Status Runtime::open_store() {
  const std::set<uint32_t> experts = expert_matrices(weights_);
  std::vector<neuron_store::MatrixExtent> extents;
  store_index_.resize(weights_.matrices.size());
  const auto add = [&](uint32_t index) {
    const TensorInfo& tensor = file_->tensors()[weights_.matrices[index]];
    store_index_[index] = static_cast<uint32_t>(extents.size());
    extents.push_back({tensor.name, tensor.shard, tensor.offset, base::row_bytes(tensor.type, tensor.dims[0]),
                       static_cast<uint32_t>(tensor.dims[1]), static_cast<uint32_t>(tensor.dims[2])});
  };
  // Dense ones first, in the order in which a pass uses them.
  for (uint32_t i = 0; i < weights_.matrices.size(); ++i) {
    if (experts.count(i) == 0) add(i);
  }
  const size_t dense_matrices = extents.size();
  for (const uint32_t index : experts) add(index);

  std::vector<std::string> paths;
  for (const format::ShardInfo& shard : file_->shards()) paths.push_back(shard.path);
  GANGLION_ASSIGN_OR_RETURN(neuron_store::WeightStore store,
                            neuron_store::WeightStore::open(paths, std::move(extents), kBlockBytes));
  store_ = std::make_unique<neuron_store::WeightStore>(std::move(store));
  dense_blocks_ = dense_matrices < store_index_.size()
                      ? store_->blocks_of(static_cast<uint32_t>(dense_matrices), 0).begin
                      : static_cast<BlockId>(store_->block_count());
  for (BlockId id = 0; id < dense_blocks_; ++id) {
    dense_block_bytes_.push_back(static_cast<uint32_t>(store_->block(id).bytes));
  }
  expert_group_.resize(store_->block_count() - dense_blocks_);
  for (size_t layer = 0; layer < weights_.layers.size(); ++layer) {
    const LayerWeights& w = weights_.layers[layer];
    for (const MatrixRef* matrix : {&w.expert_gate, &w.expert_up, &w.expert_down}) {
      if (w.bundle.present()) continue;
      for (uint32_t e = 0; matrix->present() && e < matrix->slices; ++e) {
        const neuron_store::BlockRange range = store_->blocks_of(store_index_[matrix->index], e);
        for (BlockId id = range.begin; id < range.end; ++id) {
          expert_group_[id - dense_blocks_] = static_cast<uint32_t>(layer * config_.moe.expert_count + e);
        }
      }
    }
  }
  if (packed()) GANGLION_RETURN_IF_ERROR(read_neurons());
  if (options_.verify_bundles) GANGLION_RETURN_IF_ERROR(verify_reads());
  for (const model_config::LayerConfig& layer : config_.layers) {
    kv_page_bytes_ = std::max(kv_page_bytes_, model::kv_layout(config_, layer, kv_type_).page_bytes);
  }
  const TensorInfo& embedding = file_->tensors()[weights_.embedding_tensor];
  forward_context_ = {.config = &config_,
                      .weights = &weights_,
                      .kernels = kernels_,
                      .threads = threads_.get(),
                      .queue = queue_.get(),
                      .store = store_.get(),
                      .embedding_type = embedding.type,
                      .embedding_shard = embedding.shard,
                      .embedding_offset = embedding.offset,
                      .kv_type = kv_type_,
                      .logit_rows = std::max({size_t{1}, options_.logit_rows, options_.sequences}),
                      .sparse_parts = options_.sparse_parts};
  // The header has been read; its pages need not stay.
  for (uint32_t i = 0; i < file_->shards().size(); ++i) {
    ::posix_fadvise(store_->file(i).fd(), 0, static_cast<off_t>(file_->shards()[i].data_offset),
                    POSIX_FADV_DONTNEED);
  }
  return base::ok_status();
}

planner::ModelSizes Runtime::model_sizes() {
  planner::ModelSizes sizes;
  for (const uint32_t tensor : weights_.vectors) {
    sizes.vector_bytes += base::round_up(file_->tensors()[tensor].elements() * sizeof(float), 64);
  }
  sizes.vector_bytes = base::round_up(sizes.vector_bytes, async_io::kIoAlignment);  // Scratch comes behind.
  sizes.dense_blocks = dense_block_bytes_;
  sizes.ring_slot_bytes = neuron_stream::NeuronStream::ring_slot_bytes(*store_, dense_blocks_);
  sizes.expert_block_count = expert_group_.size();
  if (sizes.expert_block_count > 0) {
    sizes.expert_slot_bytes = neuron_stream::NeuronStream::expert_slot_bytes(*store_, dense_blocks_);
    for (BlockId id = dense_blocks_; id < store_->block_count(); ++id) {
      sizes.expert_bytes += base::round_up(store_->block(id).bytes, 64);
    }
    sizes.expert_bytes_per_token = sizes.expert_bytes / config_.moe.expert_count * config_.moe.used_count;
  }
  sizes.block_use = block_use_;
  sizes.neuron_sets = neuron_sets_;
  if (packed()) sizes.bundle_slot_bytes = neuron_stream::BundleStream::slot_bytes(bundle_layers());
  if (device_ != nullptr) sizes.hot_bytes = hot_bytes_;
  sizes.context_trained = config_.context_trained;
  sizes.context = this;
  sizes.scratch_bytes = [](const void* self, size_t chunk) {
    return uint64_t{ForwardPass::scratch_bytes(static_cast<const Runtime*>(self)->forward_context_, chunk)};
  };
  sizes.kv_bytes = [](const void* self, size_t positions, size_t chunk) {
    const auto* runtime = static_cast<const Runtime*>(self);
    return uint64_t{model::kv_pages_needed(runtime->config_, positions, chunk)} * runtime->kv_page_bytes_ *
           std::max<size_t>(1, runtime->options_.sequences);
  };
  return sizes;
}

// Measured, plus what comes outside the arena: tables by block; per vocabulary entry, a session's logits and
// a sampler's candidates.
uint64_t Runtime::process_bytes() const {
  ::malloc_trim(0);
  constexpr uint64_t kTablesPerBlock = 96;
  // Program and libraries as they are in use. Just after a start under a tight limit hardly any of it may be
  // mapped.
  constexpr uint64_t kProgramBytes = 12 * base::kMiB;
  const uint64_t per_vocabulary = 16 * std::max<size_t>(1, options_.sequences);
  const platform::ProcessMemory memory = platform::read_process_memory();
  uint64_t neurons = 0;
  for (const planner::NeuronSet& set : neuron_sets_) neurons += set.frequency.size();
  const uint64_t unmapped = kProgramBytes - std::min(kProgramBytes, memory.file_bytes);
  return memory.resident_bytes + unmapped + memory.page_table_bytes +
         store_->block_count() * kTablesPerBlock + config_.vocab * per_vocabulary +
         neurons * neuron_cache::BundleCache::kTableBytes;
}

Status Runtime::make_plan() {
  GANGLION_ASSIGN_OR_RETURN(const uint64_t budget, parse_budget(options_.memory));
  planner::PlanRequest request = {.budget_bytes = budget,
                                  .process_bytes = process_bytes() + options_.beside_bytes,
                                  .context = options_.context,
                                  .chunk = options_.chunk};
  request.answer_rows = std::max(request.answer_rows, options_.sequences);
  if (config_.pack.slim) {
    request.most_chunk = kSparseRows;
    request.chunk = std::min(request.chunk, kSparseRows);
    notes_.push_back(base::format("a slim pack: prompts go %zu tokens at a time, and use down rows in %s",
                                  kSparseRows, config_.pack.down.c_str()));
  }
  // Page tables of the arena: 8 bytes for each page of 4 KiB. In whole MiB, so that it is the same the next
  // time.
  request.process_bytes += std::min(budget, file_->file_bytes()) / 512;
  request.process_bytes = base::round_up(request.process_bytes, base::kMiB);
  if (config_.learned_positions && options_.context > config_.context_trained) {
    return Status(
        Code::kInvalidArgument,
        base::format("a context of %zu was asked for, but this model knows %u positions - use -c %u",
                     options_.context, config_.context_trained, config_.context_trained));
  }
  if (options_.context > config_.context_trained) {
    notes_.push_back(base::format("the context of %zu is longer than the %u that the model was trained for",
                                  options_.context, config_.context_trained));
  }
  GANGLION_RETURN_IF_ERROR(plan_device(request));
  GANGLION_ASSIGN_OR_RETURN(plan_, planner::make_plan(model_sizes(), request));
  leave_out_parts(&plan_);
  const uint64_t available = platform::read_memory_limits().available_bytes;
  if (plan_.planned_bytes() > available + plan_.process_bytes) {
    return Status(
        Code::kResources,
        base::format("the plan takes %s, but this machine has %s available - use --mem %lluM or less",
                     base::format_bytes(plan_.planned_bytes()).c_str(), base::format_bytes(available).c_str(),
                     static_cast<unsigned long long>(available / base::kMiB)));
  }
  if (plan_.context_lowered) {
    notes_.push_back(
        base::format("context lowered to %zu positions, so that it leaves memory for weights (-c sets it)",
                     plan_.context));
  }
  forward_context_.chunk = plan_.rows;
  forward_context_.context = plan_.context;
  if (plan_.streams()) note_cached_files();
  summarise();
  return base::ok_status();
}

// Predictions are of the device. Looks at a few places of each file, and says so where reads will not need
// it.
void Runtime::note_cached_files() {
  constexpr uint64_t kPlaces = 16;
  uint64_t cached = 0;
  for (const format::ShardInfo& shard : file_->shards()) {
    const auto file = platform::File::open(shard.path);
    if (!file.ok()) return;  // Loading will say why.
    for (uint64_t i = 0; i < kPlaces; ++i)
      cached += file.value().is_cached(shard.file_bytes / kPlaces * i, 1) ? 1 : 0;
  }
  const uint64_t percent = 100 * cached / (kPlaces * file_->shards().size());
  if (percent >= 10) {
    notes_.push_back(
        base::format("about %llu %% of the model is in the page cache now: while it stays there, "
                     "streaming is faster than predicted",
                     static_cast<unsigned long long>(percent)));
  }
}

// Sums multiply-adds of a token over the matrices and finds their commonest type.
void Runtime::summarise_matrices() {
  const std::set<uint32_t> experts = expert_matrices(weights_);
  std::set<uint32_t> by_expert = experts;
  for (const LayerWeights& layer : weights_.layers) {
    const model::BundleRef& b = layer.bundle;
    for (const MatrixRef* matrix : {&b.gates, &b.predict_low, &b.predict_out, &layer.expert_down}) {
      if (matrix->present() && matrix->slices > 1) by_expert.insert(matrix->index);
    }
  }
  std::map<base::TensorType, uint64_t> by_type;
  for (uint32_t i = 0; i < weights_.matrices.size(); ++i) {
    if (i == weights_.output.index) continue;
    const TensorInfo& tensor = file_->tensors()[weights_.matrices[i]];
    uint64_t used = tensor.elements();
    if (tensor.type == base::TensorType::kI8) continue;  // Bundles: see below.
    if (experts.count(i) != 0) summary_.expert_bytes += tensor.bytes;
    if (by_expert.count(i) != 0) {
      used = used / config_.moe.expert_count * config_.moe.used_count;
      summary_.expert_multiply_adds_per_token += used;
    }
    summary_.multiply_adds_per_token += used;
    by_type[tensor.type] += used;
  }
  for (const LayerWeights& layer : weights_.layers) {
    const model::MatrixRef& rows = layer.bundle.rows;
    if (!rows.present()) continue;
    // Gates that are a matrix have been counted.
    const uint64_t parts = (layer.bundle.gates.present() ? 0 : 1) + (config_.ungated ? 0 : 1);
    const uint64_t experts_used = rows.slices > 1 ? config_.moe.used_count : 1;
    const uint64_t used = parts * experts_used * rows.rows * rows.cols;
    summary_.multiply_adds_per_token += used;
    if (rows.slices > 1) summary_.expert_multiply_adds_per_token += used;
    by_type[rows.type] += used;
  }
  const auto most = std::max_element(by_type.begin(), by_type.end(),
                                     [](const auto& a, const auto& b) { return a.second < b.second; });
  for (const model_config::LayerConfig& layer : config_.layers) {
    summary_.attention_multiply_adds += uint64_t{layer.heads} * (config_.key_dims + config_.value_dims);
    summary_.expert_layers += layer.moe ? 1 : 0;
  }
  summary_.weight_type = base::tensor_type_info(most->first).name;
  summary_.first_file = file_->shards().front().path;
}

void Runtime::summarise() {
  PlanSummary& s = summary_;
  s = {};
  summarise_matrices();
  s.budget_bytes = plan_.budget_bytes;
  s.planned_bytes = plan_.planned_bytes();
  s.items = {{"process and kernel", plan_.process_bytes},
             {"reserve", plan_.reserve_bytes},
             {"norms, biases and scratch",
              base::round_up(plan_.vector_bytes + plan_.scratch_bytes, neuron_cache::kSegmentBytes)},
             {"KV cache", base::round_up(plan_.kv_bytes, neuron_cache::kSegmentBytes)},
             {"resident weights", base::round_up(plan_.resident_bytes, neuron_cache::kSegmentBytes)},
             {"staging for reads", base::round_up(plan_.ring_bytes, neuron_cache::kSegmentBytes)}};
  if (plan_.expert_cache_bytes > 0) {
    s.items.push_back(
        {"expert cache", base::round_up(plan_.expert_cache_bytes, neuron_cache::kSegmentBytes)});
  }
  if (packed()) {
    s.items.push_back(
        {"frequent neurons", base::round_up(plan_.neuron_prefix_bytes, neuron_cache::kSegmentBytes)});
    s.items.push_back(
        {"neuron cache", base::round_up(plan_.neuron_cache_bytes, neuron_cache::kSegmentBytes)});
    s.items.push_back({"staging for neurons", plan_.neuron_staging_bytes});
  }
  if (sparse()) summarise_neurons();
  summarise_device();
  s.model_bytes = file_->file_bytes();
  s.resident_weight_bytes = plan_.resident_bytes;
  s.streamed_bytes_per_token = plan_.streamed_bytes;
  s.expert_bytes_per_token = plan_.expert_bytes_per_token;
  s.expert_cache_bytes = plan_.expert_cache_bytes;
  s.streams = plan_.streams();
  s.kv_full_bytes = plan_.kv_full_bytes;
  s.context = plan_.context;
  s.context_trained = config_.context_trained;
  s.chunk = plan_.chunk;
  s.threads = threads_->size();
  s.isa = kernels_->name;
  s.kv_type = options_.kv_type;
  s.io = std::string(queue_->name());
  s.architecture = config_.architecture;
  s.notes = notes_;
}

neuron_stream::StreamConfig Runtime::stream_config() const {
  neuron_stream::StreamConfig config;
  config.dense_blocks = dense_blocks_;
  const neuron_store::BlockRange head = store_->blocks_of(store_index_[weights_.output.index], 0);
  config.head_begin = head.begin;
  std::vector<bool> resident(dense_blocks_, false);
  for (const uint32_t id : plan_.dense_resident) {
    resident[id] = true;
    config.resident.push_back(id);
  }
  for (const BlockId id : pass_order()) {
    if (resident[id] || covered_by_prefix(id) || is_unused(id)) continue;
    config.streamed.push_back(id);
    config.streamed_tail += id >= head.begin ? 1 : 0;
  }
  for (const planner::BlockUse use : block_use_) config.exact_only.push_back(use != planner::BlockUse::kAll);
  if (plan_.experts_resident) {
    for (BlockId id = dense_blocks_; id < store_->block_count(); ++id) config.resident.push_back(id);
  }
  config.expert_group = expert_group_;
  if (!expert_group_.empty()) {
    config.expert_groups = static_cast<uint32_t>(config_.layers.size() * config_.moe.expert_count);
  }
  config.ring_slots = plan_.ring_slots;
  config.expert_slots = plan_.expert_slots;
  return config;
}

Status Runtime::load_vectors(std::span<uint8_t> memory) {
  ScratchAllocator allocator(memory);
  std::vector<uint8_t> raw;
  for (const uint32_t number : weights_.vectors) {
    const TensorInfo& tensor = file_->tensors()[number];
    const platform::File& file = store_->file(tensor.shard);
    auto* values = allocator.take<float>(tensor.elements());
    raw.resize(tensor.bytes);
    GANGLION_RETURN_IF_ERROR(
        file.read_exact(tensor.offset, raw).with_context("tensor '" + tensor.name + "'"));
    ::posix_fadvise(file.fd(), static_cast<off_t>(tensor.offset), static_cast<off_t>(tensor.bytes),
                    POSIX_FADV_DONTNEED);
    kernels_->dequantize[static_cast<size_t>(tensor.type)](raw.data(), tensor.elements(), values);
    vectors_.push_back(values);
  }
  return base::ok_status();
}

Status Runtime::load(bool (*progress)(void*, uint64_t, uint64_t), void* context) {
  GANGLION_CHECK(!loaded());
  // A load that failed before may have left parts behind; they hold memory of the old arena.
  multiplier_.reset();
  hot_.reset();
  bundles_.reset();
  stream_.reset();
  kv_pages_.reset();
  vectors_.clear();
  fixed_region_ = {};
  kv_region_ = {};
  arena_ = std::make_unique<neuron_cache::Arena>(plan_.arena_bytes());
  const size_t fixed = plan_.vector_bytes + plan_.scratch_bytes;
  const size_t most = plan_.vector_bytes + ForwardPass::scratch_bytes(forward_context_, plan_.chunk);
  GANGLION_ASSIGN_OR_RETURN(fixed_region_, neuron_cache::Region::reserve(*arena_, most, "norms and scratch"));
  GANGLION_RETURN_IF_ERROR(fixed_region_.resize(fixed));
  GANGLION_ASSIGN_OR_RETURN(kv_region_,
                            neuron_cache::Region::reserve(*arena_, plan_.kv_full_bytes, "the KV cache"));
  GANGLION_RETURN_IF_ERROR(kv_region_.resize(plan_.kv_bytes));
  kv_pages_ = std::make_unique<model::KvPages>(kv_region_.bytes().first(plan_.kv_bytes), kv_page_bytes_);
  GANGLION_RETURN_IF_ERROR(load_vectors(fixed_region_.bytes().first(plan_.vector_bytes)));
  GANGLION_ASSIGN_OR_RETURN(stream_,
                            neuron_stream::NeuronStream::create(*store_, *queue_, *arena_, stream_config()));
  multiplier_ = std::make_unique<Multiplier>(*kernels_, *threads_, *store_, *stream_, store_index_);
  GANGLION_RETURN_IF_ERROR(stream_->load_resident(progress, context));
  if (checks_ != nullptr) GANGLION_RETURN_IF_ERROR(verify_resident_bundles());
  if (packed()) GANGLION_RETURN_IF_ERROR(load_bundles(progress, context));
  forward_context_.stream = stream_.get();
  forward_context_.multiplier = multiplier_.get();
  forward_context_.vectors = vectors_;
  forward_ = std::make_unique<ForwardPass>(
      forward_context_, fixed_region_.bytes().subspan(plan_.vector_bytes, plan_.scratch_bytes));
  return base::ok_status();
}

Status Runtime::resize_scratch() {
  GANGLION_RETURN_IF_ERROR(fixed_region_.resize(plan_.vector_bytes + plan_.scratch_bytes));
  forward_->use_scratch(plan_.rows, fixed_region_.bytes().subspan(plan_.vector_bytes, plan_.scratch_bytes));
  return base::ok_status();
}

Status Runtime::apply(planner::Plan next) {
  leave_out_parts(&next);
  arena_->set_budget_bytes(std::max(arena_->budget_bytes(), next.arena_bytes()));
  if (packed() && next.neuron_cache_bytes < plan_.neuron_cache_bytes) {
    GANGLION_RETURN_IF_ERROR(bundles_->resize_cache(next.neuron_cache_bytes));
  }
  const bool less_scratch = next.scratch_bytes < plan_.scratch_bytes;
  plan_ = std::move(next);
  if (less_scratch) GANGLION_RETURN_IF_ERROR(resize_scratch());
  GANGLION_RETURN_IF_ERROR(stream_->rearrange(stream_config()));
  if (checks_ != nullptr) GANGLION_RETURN_IF_ERROR(verify_resident_bundles());
  GANGLION_RETURN_IF_ERROR(kv_region_.resize(plan_.kv_bytes));
  if (packed()) GANGLION_RETURN_IF_ERROR(bundles_->resize_cache(plan_.neuron_cache_bytes));
  kv_pages_->extend(kv_region_.bytes().first(plan_.kv_bytes));
  if (!less_scratch) GANGLION_RETURN_IF_ERROR(resize_scratch());
  arena_->set_budget_bytes(plan_.arena_bytes());
  summarise();
  return base::ok_status();
}

Status Runtime::set_budget(uint64_t bytes) {
  planner::PlanChange change = planner::unchanged(plan_);
  change.budget_bytes = bytes;
  GANGLION_ASSIGN_OR_RETURN(planner::Plan next, planner::replan(model_sizes(), plan_, change));
  return apply(std::move(next));
}

Status Runtime::make_room(size_t rows) {
  constexpr size_t kStep = 64;
  const size_t present = forward_->most_rows();
  planner::PlanChange change = planner::unchanged(plan_);
  change.rows = plan_.answer_rows;
  if (rows > plan_.answer_rows)
    change.rows = std::max(present, std::min(plan_.chunk, base::round_up(rows, kStep)));
  // What nobody else can use may as well stay.
  if (change.rows == present || (change.rows < present && !plan_.streams())) return base::ok_status();
  GANGLION_ASSIGN_OR_RETURN(planner::Plan next, planner::replan(model_sizes(), plan_, change));
  return apply(std::move(next));
}

Status Runtime::grow_kv(size_t missing) {
  // Some more than asked for: each growth costs a little reading.
  constexpr size_t kSpareShare = 8;
  const size_t pages = kv_pages_->count() + missing + kv_pages_->count() / kSpareShare;
  const uint64_t wanted = std::min<uint64_t>(
      base::round_up(pages * kv_page_bytes_, neuron_cache::kSegmentBytes), plan_.kv_full_bytes);
  if (wanted <= plan_.kv_bytes) return base::ok_status();
  planner::PlanChange change = planner::unchanged(plan_);
  change.kv_bytes = wanted;
  GANGLION_ASSIGN_OR_RETURN(planner::Plan next, planner::replan(model_sizes(), plan_, change));
  return apply(std::move(next));
}

Result<const KvOrigin*> Runtime::kv_origin() {
  if (!kv_origin_) {
    std::vector<platform::File> files;
    for (const format::ShardInfo& shard : file_->shards()) {
      GANGLION_ASSIGN_OR_RETURN(platform::File file, platform::File::open(shard.path));
      files.push_back(std::move(file));
    }
    GANGLION_ASSIGN_OR_RETURN(std::string model, format::model_fingerprint(*file_, files));
    GANGLION_ASSIGN_OR_RETURN(std::string name, file_->metadata().string_or("general.name", ""));
    kv_origin_ = KvOrigin{std::move(model), std::move(name), kv_type_, sparse()};
  }
  return &*kv_origin_;
}

void Runtime::react_to_pressure() {
  constexpr int64_t kLookEveryNs = 1'000'000'000;
  constexpr double kHighPercent =
      10;  // Of the last ten seconds, in which nobody could go on for want of memory.
  constexpr int64_t kShrinkEveryNs = 5'000'000'000;
  const int64_t now = platform::now_ns();
  if (!options_.react_to_pressure || now - last_look_ns_ < kLookEveryNs) return;
  last_look_ns_ = now;
  const double pressure = platform::read_memory_pressure();
  if (pressure < kHighPercent || now - last_shrink_ns_ < kShrinkEveryNs) return;
  last_shrink_ns_ = now;
  const uint64_t before = plan_.budget_bytes;
  if (!set_budget(before - before / 8).ok()) return;  // At the minimum already.
  notes_.push_back(base::format("memory pressure (%.0f %%): the budget was lowered from %s to %s", pressure,
                                base::format_bytes(before).c_str(),
                                base::format_bytes(plan_.budget_bytes).c_str()));
  summary_.notes = notes_;
}

}  // namespace ganglion::engine

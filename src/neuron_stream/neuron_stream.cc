#include "neuron_stream/neuron_stream.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/units.h"
#include "platform/clock.h"

namespace ganglion::neuron_stream {

using async_io::Priority;
using async_io::ReadOp;
using base::Code;
using base::Result;
using base::Status;
using neuron_cache::BlockCache;
using neuron_cache::BlockState;
using neuron_cache::Region;
using neuron_store::Block;
using neuron_store::WeightStore;

namespace {
constexpr size_t kBlockAlignment = 64;
constexpr size_t kMostExpertReads = 256;
constexpr size_t kMostRingSlots = 64;
// With more reads under way, another one only delays them.
constexpr size_t kBusyReads = 32;
constexpr size_t kNotStreamed = SIZE_MAX;
}  // namespace

NeuronStream::NeuronStream(const WeightStore& store, async_io::ReadQueue& queue, StreamConfig config)
    : store_(store), queue_(queue), config_(std::move(config)) {
  resident_data_.resize(store_.block_count(), nullptr);
  order_of_.resize(config_.dense_blocks, kNotStreamed);
  skipped_.resize(config_.dense_blocks, 0);
  index_streamed();
  ring_ = std::make_unique<BlockCache>(0, std::vector<uint32_t>{}, config_.dense_blocks,
                                       ring_slot_bytes(store_, config_.dense_blocks));
  const size_t expert_slot =
      config_.expert_groups > 0 ? expert_slot_bytes(store_, config_.dense_blocks) : async_io::kIoAlignment;
  experts_ = std::make_unique<BlockCache>(config_.dense_blocks, config_.expert_group, config_.expert_groups,
                                          expert_slot);
  asked_.resize(config_.expert_group.size(), false);
  ahead_.resize(config_.expert_group.size(), false);
  reads_.resize(std::max(config_.ring_slots, kMostRingSlots) + kMostExpertReads);
  for (BlockRead& read : reads_) {
    read.stream = this;
    read.next_free = free_reads_;
    free_reads_ = &read;
  }
}

NeuronStream::~NeuronStream() {
  while (queue_.in_flight() > 0) queue_.poll(true);
}

size_t NeuronStream::resident_bytes(const WeightStore& store, std::span<const BlockId> resident) {
  size_t bytes = 0;
  for (const BlockId id : resident) bytes += base::round_up(store.block(id).bytes, kBlockAlignment);
  return bytes;
}

size_t NeuronStream::ring_slot_bytes(const WeightStore& store, BlockId dense_blocks) {
  return store.slot_bytes(0, dense_blocks);
}

size_t NeuronStream::expert_slot_bytes(const WeightStore& store, BlockId dense_blocks) {
  return store.slot_bytes(dense_blocks, static_cast<BlockId>(store.block_count()));
}

Result<std::unique_ptr<NeuronStream>> NeuronStream::create(const WeightStore& store,
                                                           async_io::ReadQueue& queue,
                                                           neuron_cache::Arena& arena, StreamConfig config) {
  std::unique_ptr<NeuronStream> stream(new NeuronStream(store, queue, std::move(config)));
  GANGLION_RETURN_IF_ERROR(stream->reserve_memory(arena));
  GANGLION_RETURN_IF_ERROR(stream->commit_memory());
  stream->set_resident(stream->config_.resident.size());
  return stream;
}

Status NeuronStream::reserve_memory(neuron_cache::Arena& arena) {
  // Address space for whatever the budget may become; where it is scarce (ulimit -v), for the present one.
  const auto reserve = [&](size_t most, size_t now, const char* use) {
    Result<Region> region = Region::reserve(arena, std::max(most, now), use);
    return region.ok() ? std::move(region) : Region::reserve(arena, now, use);
  };
  size_t all = 0;
  for (BlockId id = 0; id < store_.block_count(); ++id)
    all += base::round_up(store_.block(id).bytes, kBlockAlignment);
  GANGLION_ASSIGN_OR_RETURN(resident_region_,
                            reserve(all, resident_bytes(store_, config_.resident), "resident weights"));
  const size_t ring_slot = ring_->slot_bytes();
  GANGLION_ASSIGN_OR_RETURN(
      ring_region_,
      reserve(kMostRingSlots * ring_slot, std::max(config_.ring_slots * ring_slot, loading_slot_bytes()),
              "the staging ring"));
  const size_t expert_slot = experts_->slot_bytes();
  GANGLION_ASSIGN_OR_RETURN(expert_region_, reserve(config_.expert_group.size() * expert_slot,
                                                    config_.expert_slots * expert_slot, "the expert cache"));
  return base::ok_status();
}

Status NeuronStream::commit_memory() {
  GANGLION_RETURN_IF_ERROR(resident_region_.resize(resident_bytes(store_, config_.resident)));
  // Resident blocks of any size are loaded through the ring's memory.
  const size_t ring_bytes = config_.ring_slots * ring_->slot_bytes();
  GANGLION_RETURN_IF_ERROR(ring_region_.resize(std::max(ring_bytes, loading_slot_bytes())));
  GANGLION_CHECK(ring_->try_set_memory(ring_region_.bytes().first(ring_bytes)));
  const size_t expert_bytes = config_.expert_slots * experts_->slot_bytes();
  GANGLION_RETURN_IF_ERROR(expert_region_.resize(expert_bytes));
  GANGLION_CHECK(experts_->try_set_memory(expert_region_.bytes().first(expert_bytes)));
  return base::ok_status();
}

// The first `count` blocks of config_.resident are in memory, one after the other.
void NeuronStream::set_resident(size_t count) {
  std::fill(resident_data_.begin(), resident_data_.end(), nullptr);
  size_t at = 0;
  for (size_t i = 0; i < count; ++i) {
    const BlockId id = config_.resident[i];
    resident_data_[id] = resident_region_.data() + at;
    at += base::round_up(store_.block(id).bytes, kBlockAlignment);
  }
}

void NeuronStream::index_streamed() {
  std::fill(order_of_.begin(), order_of_.end(), kNotStreamed);
  for (size_t i = 0; i < config_.streamed.size(); ++i) order_of_[config_.streamed[i]] = i;
}

size_t NeuronStream::loading_slot_bytes() const {
  size_t bytes = async_io::kIoAlignment;
  for (const BlockId id : config_.resident) bytes = std::max(bytes, store_.slot_bytes(id, id + 1));
  return bytes;
}

Status NeuronStream::rearrange(StreamConfig next) {
  restart();
  size_t common = 0;
  const size_t shorter = std::min(config_.resident.size(), next.resident.size());
  while (common < shorter && config_.resident[common] == next.resident[common]) ++common;
  // What shrinks goes first.
  const size_t ring_slots = std::min(config_.ring_slots, next.ring_slots);
  const size_t expert_slots = std::min(config_.expert_slots, next.expert_slots);
  StreamConfig least = config_;
  least.resident.resize(common);
  least.ring_slots = ring_slots;
  least.expert_slots = expert_slots;
  std::swap(config_, least);
  set_resident(common);
  GANGLION_RETURN_IF_ERROR(commit_memory());
  // Then what grows; blocks that are new are read before they count.
  config_ = std::move(next);
  Status status = commit_memory();
  if (status.ok()) {
    set_resident(config_.resident.size());
    status = load(std::span<const BlockId>(config_.resident).subspan(common), nullptr, nullptr);
  }
  if (!status.ok()) stream_from(common, ring_slots, expert_slots);
  index_streamed();
  return status;
}

// Growing failed: what would have become resident is streamed, with the slots that there were before.
void NeuronStream::stream_from(size_t resident_count, size_t ring_slots, size_t expert_slots) {
  for (size_t i = resident_count; i < config_.resident.size(); ++i) {
    if (!is_expert(config_.resident[i])) config_.streamed.push_back(config_.resident[i]);
  }
  std::sort(config_.streamed.begin(), config_.streamed.end());
  config_.streamed_tail =
      static_cast<size_t>(std::count_if(config_.streamed.begin(), config_.streamed.end(),
                                        [this](BlockId id) { return id >= config_.head_begin; }));
  config_.resident.resize(resident_count);
  config_.ring_slots = ring_slots;
  config_.expert_slots = expert_slots;
  set_resident(resident_count);
  GANGLION_CHECK(commit_memory().ok());  // It gives back.
}

Status NeuronStream::load_resident(bool (*progress)(void*, uint64_t, uint64_t), void* context) {
  return load(config_.resident, progress, context);
}

Status NeuronStream::load(std::span<const BlockId> blocks, bool (*progress)(void*, uint64_t, uint64_t),
                          void* context) {
  // Reads go through slots of the ring: direct reads are wider than the blocks, which are packed densely.
  struct Load {
    ReadOp op;
    uint8_t* to = nullptr;
    std::vector<Load*>* idle = nullptr;
    Status* error = nullptr;
    uint64_t* done = nullptr;
  };
  const size_t slot_bytes = loading_slot_bytes();
  const size_t slots = std::min<size_t>(ring_region_.size() / slot_bytes, 32);
  GANGLION_CHECK(slots > 0);
  std::vector<Load> loads(slots);
  std::vector<Load*> idle;
  idle.reserve(slots);
  Status error;
  uint64_t done = 0;
  uint64_t total = 0;
  for (const BlockId id : blocks) total += store_.block(id).bytes;
  for (size_t i = 0; i < slots; ++i) {
    loads[i].op.memory = ring_region_.data() + i * slot_bytes;
    loads[i].op.context = &loads[i];
    loads[i].idle = &idle;
    loads[i].error = &error;
    loads[i].done = &done;
    loads[i].op.done = [](ReadOp* op) {
      auto* load = static_cast<Load*>(op->context);
      if (op->status.ok()) {
        std::memcpy(load->to, async_io::wanted(*op), op->needed);
      } else if (load->error->ok()) {
        *load->error = op->status;
      }
      *load->done += op->needed;
      load->idle->push_back(load);
    };
    idle.push_back(&loads[i]);
  }
  bool cached = true;  // Until the page cache lacks a block.
  for (const BlockId id : blocks) {
    if (error.ok() && progress != nullptr && !progress(context, done, total)) {
      error = Status(Code::kCancelled, "interrupted");
    }
    if (!error.ok()) break;
    const Block block = store_.block(id);
    const platform::File& file = store_.file(store_.matrix(block.matrix).shard);
    cached = cached && async_io::try_read_cached(file, block.offset, {resident_data_[id], block.bytes});
    if (cached) {
      done += block.bytes;
      stats_.cached_bytes += block.bytes;
      continue;
    }
    while (idle.empty()) queue_.poll(true);
    Load* load = idle.back();
    idle.pop_back();
    store_.describe_read(id, &load->op);
    load->op.priority = Priority::kNormal;
    load->to = resident_data_[id];
    ReadOp* op = &load->op;
    queue_.submit({&op, 1});
  }
  while (queue_.in_flight() > 0) queue_.poll(true);
  return error;
}

void NeuronStream::begin_pass(PassKind kind, PassKind next) {
  ++pass_;
  const bool wrong_guess = kind_[pass_ % 2].exact != kind.exact;
  kind_[pass_ % 2] = kind;
  kind_[(pass_ + 1) % 2] = next;
  std::fill(asked_.begin(), asked_.end(), false);
  queue_.poll(false);
  if (wrong_guess) drop_streamed();
  if (cursor_pass_ < pass_ || wrong_guess) {
    // The pass before was not read to its end.
    cursor_pass_ = pass_;
    cursor_ = 0;
  }
  if (!kind.output) {
    // If the head was read ahead, then for nothing.
    const size_t end = config_.streamed.size() - config_.streamed_tail;
    for (size_t i = end; i < config_.streamed.size(); ++i) ring_->drop(config_.streamed[i]);
    cursor_ = std::min(cursor_, end);
  }
  pump();
}

void NeuronStream::drop_streamed() {
  for (const BlockId id : config_.streamed) ring_->drop(id);
}

void NeuronStream::skip(BlockId block) {
  if (resident_data_[block] != nullptr) return;
  skipped_[block] = pass_;
  ring_->drop(block);
  pump();
}

// Whether the pass that the cursor is in does without a block.
bool NeuronStream::passed_over(BlockId block) const {
  const bool unused =
      !config_.exact_only.empty() && config_.exact_only[block] && !kind_[cursor_pass_ % 2].exact;
  return unused || skipped_[block] == cursor_pass_;
}

void NeuronStream::restart() {
  while (queue_.in_flight() > 0) queue_.poll(true);
  drop_streamed();
  cursor_ = 0;
  cursor_pass_ = pass_ + 1;
  error_ = base::ok_status();
}

bool NeuronStream::in_memory(BlockId block) const {
  if (resident_data_[block] != nullptr) return true;
  return (is_expert(block) ? *experts_ : *ring_).state(block) == BlockState::kResident;
}

const uint8_t* NeuronStream::try_pin(BlockId block) {
  if (resident_data_[block] != nullptr) return resident_data_[block];
  BlockCache& cache = is_expert(block) ? *experts_ : *ring_;
  const bool here = cache.state(block) == BlockState::kResident;
  if (is_expert(block)) count_ask(block, here);
  if (here && is_expert(block) && ahead_[block - config_.dense_blocks]) {
    ahead_[block - config_.dense_blocks] = false;
    ++stats_.ahead_used;
  }
  return here ? cache.pin(block) : nullptr;
}

void NeuronStream::unpin(BlockId block) {
  if (resident_data_[block] != nullptr) return;
  if (is_expert(block)) {
    experts_->unpin(block);
    return;
  }
  ring_->unpin(block);
  ring_->drop(block);
  pump();
}

// Once a pass, when a block is first asked for: one that was asked for early and has come meanwhile is no
// hit.
void NeuronStream::count_ask(BlockId block, bool here) {
  if (asked_[block - config_.dense_blocks]) return;
  asked_[block - config_.dense_blocks] = true;
  ++(here ? stats_.expert_hits : stats_.expert_misses);
}

void NeuronStream::request(BlockId block) {
  if (!is_expert(block) || resident_data_[block] != nullptr) return;
  count_ask(block, experts_->state(block) == BlockState::kResident);
  if (experts_->state(block) == BlockState::kAbsent) start_read(*experts_, block, true, Priority::kUrgent);
}

void NeuronStream::request_ahead(BlockId block) {
  if (is_absent(block) && queue_.in_flight() < kBusyReads) (void)start_ahead(block, true);
}

bool NeuronStream::start_ahead(BlockId block, bool force) {
  if (!start_read(*experts_, block, force, Priority::kLookAhead)) return false;
  ahead_[block - config_.dense_blocks] = true;
  ++stats_.ahead_reads;
  return true;
}

void NeuronStream::read_next(std::span<const BlockId> blocks, uint32_t groups) {
  next_.assign(blocks.begin(), blocks.end());
  next_at_ = 0;
  next_groups_ = groups;
  pump_next();
}

void NeuronStream::pump_next() {
  for (; next_at_ < next_.size() && error_.ok(); ++next_at_) {
    const BlockId block = next_[next_at_];
    if (!is_absent(block)) continue;
    if (!experts_->make_room(experts_->group_of(block), next_groups_) || !start_ahead(block, false)) return;
  }
}

void NeuronStream::poll() {
  queue_.poll(false);
  pump();
}

Status NeuronStream::wait(BlockId first_needed) {
  if (error_.ok() && in_memory(first_needed)) return base::ok_status();
  if (queue_.in_flight() == 0 && error_.ok()) {
    if (is_expert(first_needed)) {
      request(first_needed);
    } else {
      seek(first_needed);
    }
    GANGLION_CHECK(queue_.in_flight() > 0);
  }
  const int64_t start = platform::now_ns();
  if (error_.ok()) queue_.poll(true);
  pump();
  stats_.wait_ns += platform::now_ns() - start;
  return std::exchange(error_, base::ok_status());
}

bool NeuronStream::start_read(BlockCache& cache, BlockId block, bool force, Priority priority) {
  const bool expert = &cache == experts_.get();
  if (free_reads_ == nullptr || (expert && expert_reads_ + config_.ring_slots >= reads_.size())) return false;
  uint8_t* memory = cache.begin_load(block, force);
  if (memory == nullptr) return false;
  if (expert && ahead_[block - config_.dense_blocks]) {
    ahead_[block - config_.dense_blocks] = false;
    ++stats_.ahead_wasted;
  }
  BlockRead* read = free_reads_;
  free_reads_ = read->next_free;
  expert_reads_ += expert ? 1 : 0;
  read->cache = &cache;
  read->block = block;
  store_.describe_read(block, &read->op);
  read->op.memory = memory;
  read->op.priority = priority;
  read->op.done = read_done;
  read->op.context = read;
  ReadOp* op = &read->op;
  queue_.submit({&op, 1});
  return true;
}

void NeuronStream::read_done(ReadOp* op) {
  auto* read = static_cast<BlockRead*>(op->context);
  NeuronStream& stream = *read->stream;
  const bool wanted = !read->cache->dropped(read->block);
  read->cache->complete(read->block, op->status.ok(), async_io::wanted(*op));
  if (wanted && !op->status.ok() && stream.error_.ok()) stream.error_ = op->status;
  stream.expert_reads_ -= read->cache == stream.experts_.get() ? 1 : 0;
  read->next_free = stream.free_reads_;
  stream.free_reads_ = read;
}

// Reads ahead in the order of the pass, into the next one, as far as the ring has room.
void NeuronStream::pump() {
  pump_next();
  if (config_.streamed.empty() || !error_.ok()) return;
  for (;;) {
    const bool with_output = kind_[cursor_pass_ % 2].output;
    const size_t end = config_.streamed.size() - (with_output ? 0 : config_.streamed_tail);
    if (cursor_ >= end) {
      // Never more than one pass ahead: what the one after wants is not known yet.
      if (cursor_pass_ > pass_ || end == 0) return;
      ++cursor_pass_;
      cursor_ = 0;
      continue;
    }
    const BlockId block = config_.streamed[cursor_];
    if (passed_over(block)) {
      ++cursor_;
      continue;
    }
    if (ring_->dropped(block)) {
      ring_->keep(block);  // Dropped while it was being read, and now wanted after all.
    } else if (ring_->state(block) != BlockState::kAbsent) {
      return;  // Still there for this pass.
    } else if (!start_read(*ring_, block, false, Priority::kNormal)) {
      return;
    }
    ++cursor_;
  }
}

// Starts over from a block that read-ahead has missed.
void NeuronStream::seek(BlockId block) {
  drop_streamed();
  GANGLION_CHECK(order_of_[block] != kNotStreamed);
  cursor_ = order_of_[block];
  cursor_pass_ = pass_;
  pump();
}

size_t NeuronStream::expert_slots() const {
  const bool resident = !resident_data_.empty() && resident_data_.back() != nullptr;
  return is_expert(static_cast<BlockId>(resident_data_.size() - 1)) && resident ? SIZE_MAX
                                                                                : config_.expert_slots;
}

void NeuronStream::use_expert(uint32_t group) {
  experts_->touch_group(group);
}

void NeuronStream::tick() {
  next_at_ = next_.size();
  experts_->tick();
}

StreamStats NeuronStream::stats() const {
  StreamStats stats = stats_;
  const async_io::IoStats io = queue_.stats();
  stats.device_bytes = io.device_bytes;
  stats.cached_bytes += io.cached_bytes;
  stats.reads = io.operations;
  return stats;
}

}  // namespace ganglion::neuron_stream

#include "neuron_stream/bundle_stream.h"

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
using neuron_cache::BundleCache;
using neuron_cache::Region;

namespace {
// Bundles with a gap of at most this are read at once, unless more was measured to pay: it costs less than
// another request (8 KiB and 16 KiB reads cost the same on a device that is bound by requests).
constexpr uint64_t kLeastMergeGap = 8 * base::kKiB;
constexpr uint64_t kMostMergeGap = 64 * base::kKiB;
constexpr uint64_t kLongestRun = 64 * base::kKiB;
// Reads that are timed, and how many at most: some milliseconds on a fast device.
constexpr uint64_t kSmallRead = 8 * base::kKiB;
constexpr uint64_t kLargeRead = 64 * base::kKiB;
constexpr size_t kTimedReads = 128;
constexpr size_t kMostRuns = 8192;
constexpr size_t kLoadBytes = 512 * base::kKiB;
}  // namespace

size_t BundleStream::prefix_bytes(size_t set) const {
  return base::round_up(uint64_t{plan_.prefix[set] - plan_.hot[set]} * layers_[layer_of_[set]].bytes, 64);
}

size_t BundleStream::slot_bytes(std::span<const BundleLayer> layers) {
  size_t bytes = 64;
  for (const BundleLayer& layer : layers) bytes = std::max<size_t>(bytes, base::round_up(layer.bytes, 64));
  return bytes;
}

BundleStream::BundleStream(const neuron_store::WeightStore& store, async_io::ReadQueue& queue,
                           std::vector<BundleLayer> layers, std::span<const float> frequency, BundlePlan plan)
    : store_(store), queue_(queue), layers_(std::move(layers)), plan_(std::move(plan)) {
  uint32_t neurons = 0;
  for (size_t layer = 0; layer < layers_.size(); ++layer) {
    first_set_.push_back(static_cast<uint32_t>(layer_of_.size()));
    for (uint32_t e = 0; e < layers_[layer].experts; ++e) {
      layer_of_.push_back(static_cast<uint32_t>(layer));
      first_neuron_.push_back(neurons);
      neurons += layers_[layer].neurons;
    }
  }
  GANGLION_CHECK(neurons == frequency.size());
  plan_.hot.resize(layer_of_.size());
  cache_ = std::make_unique<BundleCache>(frequency, slot_bytes(layers_));
  merge_gap_ = kLeastMergeGap;
}

BundleStream::~BundleStream() {
  while (queue_.in_flight() > 0) queue_.poll(true);
}

Result<std::unique_ptr<BundleStream>> BundleStream::create(
    const neuron_store::WeightStore& store, async_io::ReadQueue& queue, neuron_cache::Arena& arena,
    std::vector<BundleLayer> layers, std::span<const float> frequency, BundlePlan plan) {
  std::unique_ptr<BundleStream> stream(
      new BundleStream(store, queue, std::move(layers), frequency, std::move(plan)));
  GANGLION_RETURN_IF_ERROR(stream->reserve(arena));
  return stream;
}

Status BundleStream::reserve(neuron_cache::Arena& arena) {
  size_t prefix = 0;
  for (size_t set = 0; set < layer_of_.size(); ++set) prefix += prefix_bytes(set);
  GANGLION_ASSIGN_OR_RETURN(prefix_region_, Region::reserve(arena, prefix, "resident neurons"));
  GANGLION_RETURN_IF_ERROR(prefix_region_.resize(prefix));
  size_t at = 0;
  for (size_t set = 0; set < layer_of_.size(); ++set) {
    prefix_data_.push_back(prefix_region_.data() + at);
    at += prefix_bytes(set);
  }
  // The cache may take what others give back later.
  Result<Region> cache = Region::reserve(arena, arena.budget_bytes() + plan_.later_bytes, "the neuron cache");
  if (!cache.ok()) cache = Region::reserve(arena, plan_.cache_bytes, "the neuron cache");
  if (!cache.ok()) return cache.status();
  cache_region_ = cache.take();
  GANGLION_RETURN_IF_ERROR(resize_cache(plan_.cache_bytes));
  GANGLION_ASSIGN_OR_RETURN(staging_region_, Region::reserve(arena, plan_.staging_bytes, "staged neurons"));
  GANGLION_RETURN_IF_ERROR(staging_region_.resize(plan_.staging_bytes));
  runs_.resize(std::clamp<size_t>(plan_.staging_bytes / async_io::kIoAlignment, 16, kMostRuns));
  for (Run& run : runs_) run.stream = this;
  batch_.reserve(runs_.size());
  staged_.reserve(plan_.staging_bytes / slot_bytes(layers_) + runs_.size());
  return base::ok_status();
}

Status BundleStream::resize_cache(size_t bytes) {
  if (bytes < cache_region_.size()) {
    restart();
    cache_->set_memory(cache_region_.bytes().first(bytes));
  }
  GANGLION_RETURN_IF_ERROR(cache_region_.resize(bytes));
  cache_->set_memory(cache_region_.bytes().first(std::min(bytes, cache_region_.size())));
  plan_.cache_bytes = bytes;
  return base::ok_status();
}

uint64_t BundleStream::load_bytes() const {
  uint64_t bytes = 0;
  for (size_t set = 0; set < layer_of_.size(); ++set)
    bytes += uint64_t{std::max(plan_.warm[set], plan_.prefix[set])} * layers_[layer_of_[set]].stride;
  return bytes;
}

Status BundleStream::load(bool (*progress)(void*, uint64_t, uint64_t), void* context, HotSink* hot) {
  const uint64_t total = load_bytes();
  uint64_t done = 0;
  for (uint32_t set = 0; set < layer_of_.size(); ++set) {
    const uint32_t stride = layers_[layer_of_[set]].stride;
    const uint32_t end = std::max(plan_.warm[set], plan_.prefix[set]);
    // As many rows as staging holds in reads of half a mebibyte.
    const auto step = static_cast<uint32_t>(std::max<size_t>(1, (staging_region_.size() / 2) / stride));
    for (uint32_t begin = 0; begin < end; begin += step) {
      if (progress != nullptr && !progress(context, done, total))
        return Status(Code::kCancelled, "interrupted");
      const uint32_t last = std::min(end, begin + step);
      GANGLION_RETURN_IF_ERROR(load_range(set, begin, last, hot));
      done += uint64_t{last - begin} * stride;
    }
  }
  return base::ok_status();
}

// Reads bundles [begin, end) of a set side by side into staging, and copies each to where it belongs.
Status BundleStream::load_range(uint32_t set, uint32_t begin, uint32_t end, HotSink* hot) {
  const BundleLayer& layer = layers_[layer_of_[set]];
  const auto rows_per_read = static_cast<uint32_t>(std::max<size_t>(1, kLoadBytes / layer.stride));
  const uint64_t set_offset =
      layer.offset + uint64_t{set - first_set_[layer_of_[set]]} * layer.neurons * layer.stride;
  uint32_t next = begin;
  while (next < end) {
    size_t used = 0;
    uint32_t count = 0;
    const uint32_t first = next;
    while (next < end && count < runs_.size()) {
      const uint32_t rows = std::min(rows_per_read, end - next);
      ReadOp& op = runs_[count].op;
      op = {};
      op.file = &store_.file(layer.shard);
      op.offset = set_offset + uint64_t{next} * layer.stride;
      op.needed = uint64_t{rows - 1} * layer.stride + layer.bytes;
      const uint64_t widened = async_io::widened_bytes(op.offset, op.needed);
      if (used + widened > staging_region_.size()) break;
      op.memory = staging_region_.data() + used;
      op.label = "bundles";
      op.context = &runs_[count];
      op.done = [](ReadOp*) {};
      used += widened;
      ReadOp* submitted = &op;
      queue_.submit({&submitted, 1});
      next += rows;
      ++count;
    }
    GANGLION_CHECK(count > 0);
    while (queue_.in_flight() > 0) queue_.poll(true);
    uint32_t row = first;
    for (uint32_t i = 0; i < count; ++i) {
      if (!runs_[i].op.status.ok()) return runs_[i].op.status;
      const uint8_t* from = async_io::wanted(runs_[i].op);
      const uint32_t last = std::min(row + rows_per_read, end);
      for (; row < last; ++row, from += layer.stride) {
        if (row < plan_.hot[set]) {
          hot->take(set, row, from);
          continue;
        }
        uint8_t* to = prefix_data_[set] + uint64_t{row - plan_.hot[set]} * layer.bytes;
        if (row >= plan_.prefix[set]) {
          cache_->set_mark(first_neuron_[set] + row, 0);
          to = cache_->admit(first_neuron_[set] + row);
        }
        if (to != nullptr) std::memcpy(to, from, layer.bytes);
      }
    }
  }
  return base::ok_status();
}

uint64_t merge_gap(double small_ns, uint64_t small_bytes, double large_ns, uint64_t large_bytes) {
  const double ns_per_byte = (large_ns - small_ns) / static_cast<double>(large_bytes - small_bytes);
  if (ns_per_byte <= 0) return kMostMergeGap;  // Bytes cost nothing that could be seen.
  const double request_ns = small_ns - ns_per_byte * static_cast<double>(small_bytes);
  const double gap = 0.5 * request_ns / ns_per_byte;
  return static_cast<uint64_t>(
      std::clamp(gap, static_cast<double>(kLeastMergeGap), static_cast<double>(kMostMergeGap)));
}

Status BundleStream::measure_merging() {
  const size_t count = std::min(kTimedReads, staging_region_.size() / kLargeRead);
  constexpr size_t kFewest = 16;
  if (count < kFewest) return base::ok_status();
  GANGLION_RETURN_IF_ERROR(time_reads(kSmallRead, kFewest).status());
  GANGLION_ASSIGN_OR_RETURN(const int64_t small_ns, time_reads(kSmallRead, count));
  GANGLION_ASSIGN_OR_RETURN(const int64_t large_ns, time_reads(kLargeRead, count));
  merge_gap_ =
      merge_gap(static_cast<double>(small_ns), kSmallRead, static_cast<double>(large_ns), kLargeRead);
  return base::ok_status();
}

// Nanoseconds of reads at random places of packed layers, all under way at once.
Result<int64_t> BundleStream::time_reads(uint64_t bytes, size_t count) {
  const int64_t start = platform::now_ns();
  for (size_t i = 0; i < std::min(count, runs_.size()); ++i) {
    random_ = random_ * 6364136223846793005U + 1442695040888963407U;
    const uint64_t random = random_ >> 33;
    const BundleLayer& layer = layers_[layer_of_[random % layer_of_.size()]];
    const uint64_t all = uint64_t{layer.experts} * layer.neurons * layer.stride;
    if (all < bytes) continue;
    ReadOp& op = runs_[i].op;
    op = {};
    op.file = &store_.file(layer.shard);
    // Bundles begin on pages or not: so do these.
    op.offset = layer.offset + (random * layer.stride) % (all - bytes + 1);
    op.needed = bytes - async_io::kIoAlignment;
    op.memory = staging_region_.data() + i * bytes;
    op.label = "bundles";
    op.done = [](ReadOp*) {};
    ReadOp* submitted = &op;
    queue_.submit({&submitted, 1});
  }
  while (queue_.in_flight() > 0) queue_.poll(true);
  for (size_t i = 0; i < std::min(count, runs_.size()); ++i) {
    if (!runs_[i].op.status.ok()) return runs_[i].op.status;
  }
  return platform::now_ns() - start;
}

// Nothing is admitted to the cache, and nothing evicted from it, while a layer uses what it found there: only
// here, before it looks, and when it is done.
void BundleStream::begin_layer(size_t layer) {
  if (layer_ == layer) return;
  retire();
  layer_ = layer;
}

void BundleStream::retire() {
  recycle();
  layer_ = SIZE_MAX;
}

const uint8_t* BundleStream::find(uint32_t set, uint32_t neuron) const {
  if (in_prefix(set, neuron))
    return prefix_data_[set] + uint64_t{neuron - plan_.hot[set]} * layers_[layer_of_[set]].bytes;
  const uint32_t place = cache_->place(first_neuron_[set] + neuron);
  if (place == BundleCache::kNowhere) return nullptr;
  if (place < BundleCache::kFirstMark) return cache_->data(place);
  const Staged& staged = staged_[place - BundleCache::kFirstMark];
  const Run& run = runs_[staged.run];
  return run.complete && run.op.status.ok() ? async_io::wanted(run.op) + staged.at : nullptr;
}

void BundleStream::touch(uint32_t set, uint32_t neuron) {
  // Before the layer's own requests only look-ahead has marked its neurons.
  const uint32_t place = cache_->place(first_neuron_[set] + neuron);
  if (place >= BundleCache::kFirstMark && place != BundleCache::kNowhere) ++stats_.ahead_used;
  cache_->touch(first_neuron_[set] + neuron);
}

size_t BundleStream::request(uint32_t set, std::span<const uint32_t> neurons) {
  return prepare(set, neurons, Priority::kNormal);
}

size_t BundleStream::request_ahead(uint32_t set, std::span<const uint32_t> neurons) {
  const size_t before = staged_.size();
  const size_t taken = prepare(set, neurons, Priority::kLookAhead);
  stats_.ahead_reads += staged_.size() - before;
  return taken;
}

size_t BundleStream::prepare(uint32_t set, std::span<const uint32_t> neurons, Priority priority) {
  GANGLION_CHECK(layer_of_[set] == layer_);
  const BundleLayer& layer = layers_[layer_];
  const uint64_t set_offset =
      layer.offset + uint64_t{set - first_set_[layer_]} * layer.neurons * layer.stride;
  size_t i = 0;
  while (i < neurons.size()) {
    if (cache_->place(first_neuron_[set] + neurons[i]) != BundleCache::kNowhere) {
      ++i;
      continue;
    }
    // A run: neighbours with small gaps.
    size_t end = i + 1;
    const uint64_t begin_offset = set_offset + uint64_t{neurons[i]} * layer.stride;
    uint64_t end_offset = begin_offset + layer.bytes;
    while (end < neurons.size()) {
      const uint64_t offset = set_offset + uint64_t{neurons[end]} * layer.stride;
      if (offset > end_offset + merge_gap_ ||
          offset + layer.bytes - begin_offset > std::max(kLongestRun, 2 * merge_gap_) ||
          cache_->place(first_neuron_[set] + neurons[end]) != BundleCache::kNowhere) {
        break;
      }
      end_offset = offset + layer.bytes;
      ++end;
    }
    const uint64_t widened = async_io::widened_bytes(begin_offset, end_offset - begin_offset);
    if (run_count_ == runs_.size() || staged_bytes_ + widened > staging_region_.size()) break;
    Run& run = runs_[run_count_];
    run.complete = false;
    run.op = {};
    run.op.file = &store_.file(layer.shard);
    run.op.offset = begin_offset;
    run.op.needed = end_offset - begin_offset;
    run.op.memory = staging_region_.data() + staged_bytes_;
    run.op.priority = priority;
    run.op.label = "bundles";
    run.op.context = &run;
    run.op.done = read_done;
    staged_bytes_ += widened;
    for (; i < end; ++i) {
      cache_->set_mark(first_neuron_[set] + neurons[i], static_cast<uint32_t>(staged_.size()));
      staged_.push_back(
          {first_neuron_[set] + neurons[i], run_count_,
           static_cast<uint32_t>(set_offset + uint64_t{neurons[i]} * layer.stride - begin_offset)});
    }
    ++run_count_;
  }
  return i;
}

void BundleStream::submit() {
  batch_.clear();
  for (; submitted_ < run_count_; ++submitted_) batch_.push_back(&runs_[submitted_].op);
  stats_.requests += batch_.size();
  if (!batch_.empty()) queue_.submit(batch_);
}

void BundleStream::read_done(ReadOp* op) {
  Run& run = *static_cast<Run*>(op->context);
  run.complete = true;
  BundleStream& stream = *run.stream;
  ++stream.complete_;
  if (!op->status.ok() && stream.error_.ok()) stream.error_ = op->status;
}

// Lets go of what staging holds: what is still being read is waited for, what is warm enough goes into the
// cache.
void BundleStream::recycle() {
  GANGLION_CHECK(submitted_ == run_count_);
  while (complete_ < run_count_) queue_.poll(true);
  for (const Staged& staged : staged_) {
    const Run& run = runs_[staged.run];
    uint8_t* to = nullptr;
    if (run.op.status.ok()) {
      to = cache_->admit(staged.neuron);
    } else {
      cache_->clear_mark(staged.neuron);
    }
    if (to == nullptr) continue;
    const auto set = std::upper_bound(first_neuron_.begin(), first_neuron_.end(), staged.neuron) - 1;
    const size_t index = static_cast<size_t>(set - first_neuron_.begin());
    std::memcpy(to, async_io::wanted(run.op) + staged.at, layers_[layer_of_[index]].bytes);
  }
  staged_.clear();
  staged_bytes_ = 0;
  run_count_ = submitted_ = complete_ = 0;
}

Status BundleStream::recycle_present() {
  recycle();
  return std::exchange(error_, base::ok_status());
}

Status BundleStream::poll(bool wait) {
  if (wait && queue_.in_flight() > 0) {
    const int64_t start = platform::now_ns();
    queue_.poll(true);
    stats_.wait_ns += platform::now_ns() - start;
  } else {
    queue_.poll(false);
  }
  return std::exchange(error_, base::ok_status());
}

Status BundleStream::wait_for_requested() {
  submit();
  while (complete_ < run_count_) GANGLION_RETURN_IF_ERROR(poll(true));
  return base::ok_status();
}

void BundleStream::restart() {
  submit();
  retire();
  error_ = base::ok_status();
}

}  // namespace ganglion::neuron_stream

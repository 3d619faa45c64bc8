#include "engine/hot_clusters.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/units.h"
#include "platform/clock.h"

namespace ganglion::engine {

using accelerator::Access;
using accelerator::Backend;
using accelerator::BufferId;
using accelerator::Capabilities;
using accelerator::Outcome;
using base::Code;
using base::Result;
using base::Status;

namespace {
constexpr uint32_t kNoLane = UINT32_MAX;
constexpr uint64_t kPage = 4096;
// A call that has not ended by then never will.
constexpr int64_t kDeadlineNs = 5'000'000'000;
// A device that fails so often in a row only costs time.
constexpr uint32_t kMostFailures = 8;

// Of a call's x, or its results.
uint64_t vectors_bytes(uint32_t bucket, uint32_t dim, const Capabilities& device) {
  return base::round_up(uint64_t{bucket} * dim * sizeof(float), device.buffer_alignment);
}
}  // namespace

// Which lane each set lies in, and what is made there.
struct HotClusters::Placing {
  std::vector<uint32_t> lanes;       // by set; kNoLane: nothing of it is hot
  std::vector<RowPlaces> rows;       // by set
  std::vector<uint32_t> boundaries;  // neurons at which parts end
  uint64_t x_bytes = 0;              // of a lane
  uint64_t out_bytes = 0;
  uint64_t all_bytes = 0;
};

HotClusters::RowPlaces HotClusters::place_rows(const HotSet& set, uint32_t dim, uint32_t alignment) {
  const auto aligned = [&](uint32_t bytes) {
    return static_cast<uint32_t>(base::round_up(bytes, alignment));
  };
  RowPlaces at;
  at.gate_bytes = static_cast<uint32_t>(base::row_bytes(set.format.gate, dim));
  at.up_bytes = static_cast<uint32_t>(base::row_bytes(set.format.up, dim));
  at.down_bytes = static_cast<uint32_t>(kernels::down_row_bytes(set.format.down, dim));
  if (set.gates_apart) {
    at.gate_stride = aligned(at.gate_bytes);
  } else {
    at.up = aligned(at.gate_bytes);
  }
  at.down = aligned(at.up + at.up_bytes);
  at.stride = aligned(at.down + at.down_bytes);
  return at;
}

bool HotClusters::as_in_packs(const HotLayout& layout, const Capabilities& device) {
  return std::all_of(layout.sets.begin(), layout.sets.end(), [&](const HotSet& set) {
    const RowPlaces at = place_rows(set, layout.dim, device.row_alignment);
    return set.neurons == 0 || (at.up == set.up_offset && at.down == set.down_offset);
  });
}

std::vector<uint32_t> HotClusters::kept_buckets(std::span<const uint32_t> buckets, size_t sets,
                                                uint32_t graph_limit) {
  const size_t room = sets == 0 ? 0 : std::min<size_t>(graph_limit / sets, buckets.size());
  if (room == 0) return {};
  std::vector<uint32_t> kept(buckets.begin(), buckets.begin() + static_cast<ptrdiff_t>(room - 1));
  kept.push_back(buckets.back());
  return kept;
}

Result<HotClusters::Placing> HotClusters::place(const HotLayout& layout, const Capabilities& device) {
  Placing placing;
  for (const uint32_t neurons : layout.neurons) {
    if (neurons > 0 && (placing.boundaries.empty() || neurons > placing.boundaries.back()))
      placing.boundaries.push_back(neurons);
  }
  for (const uint32_t bucket : layout.buckets) {
    placing.x_bytes = std::max(placing.x_bytes, vectors_bytes(bucket, layout.dim, device) *
                                                    base::ceil_div(layout.most_rows, size_t{bucket}));
  }
  placing.x_bytes = base::round_up(placing.x_bytes, kPage);
  placing.out_bytes = placing.x_bytes * layout.most_units;
  std::vector<uint64_t> used(device.windows.size());
  std::vector<bool> has_queue(device.windows.size());
  for (const uint32_t window : device.queues) has_queue[window] = true;
  const uint64_t most = placing.boundaries.empty() ? 0 : placing.boundaries.back();
  for (const HotSet& set : layout.sets) {
    placing.rows.push_back(set.neurons > 0 ? place_rows(set, layout.dim, device.row_alignment) : RowPlaces{});
    placing.lanes.push_back(kNoLane);
    const uint64_t neurons = std::min<uint64_t>(most, set.neurons);
    if (neurons == 0) continue;
    const RowPlaces& at = placing.rows.back();
    const uint64_t bytes =
        base::round_up(neurons * (at.stride + at.gate_stride), kPage) + kPage * placing.boundaries.size();
    for (uint32_t w = 0; w < used.size() && placing.lanes.back() == kNoLane; ++w) {
      const uint64_t own = bytes + (used[w] == 0 ? placing.x_bytes + placing.out_bytes : 0);
      if (!has_queue[w] || own > device.windows[w] - used[w]) continue;
      used[w] += own;
      placing.all_bytes += own;
      placing.lanes.back() = w;
    }
    if (placing.lanes.back() == kNoLane) {
      return Status(
          Code::kResources,
          base::format("%llu hot neurons of %zu sets do not fit the memory of device %s",
                       static_cast<unsigned long long>(most), layout.sets.size(), device.name.c_str()));
    }
  }
  return placing;
}

Result<uint64_t> HotClusters::device_bytes(const HotLayout& layout, const Capabilities& device) {
  GANGLION_ASSIGN_OR_RETURN(const Placing placing, place(layout, device));
  return placing.all_bytes;
}

HotClusters::HotClusters(Backend& backend, HotLayout layout)
    : backend_(&backend), layout_(std::move(layout)) {}

Result<std::unique_ptr<HotClusters>> HotClusters::create(Backend& backend, HotLayout layout) {
  GANGLION_ASSIGN_OR_RETURN(const Placing placing, place(layout, backend.capabilities()));
  std::unique_ptr<HotClusters> hot(new HotClusters(backend, std::move(layout)));
  GANGLION_RETURN_IF_ERROR(hot->make_buffers(placing));
  return hot;
}

Status HotClusters::make_buffers(const Placing& placing) {
  const Capabilities& device = backend_->capabilities();
  lanes_.resize(device.windows.size());
  sets_.resize(layout_.sets.size());
  for (size_t q = device.queues.size(); q-- > 0;) lanes_[device.queues[q]].queue = static_cast<uint32_t>(q);
  for (size_t s = 0; s < sets_.size(); ++s) {
    if (placing.lanes[s] == kNoLane) continue;
    Set& set = sets_[s];
    set.lane = placing.lanes[s];
    set.at = placing.rows[s];
    Lane& lane = lanes_[set.lane];
    if (!lane.made) {
      GANGLION_ASSIGN_OR_RETURN(lane.x,
                                backend_->create_buffer({.bytes = placing.x_bytes, .window = set.lane}));
      GANGLION_ASSIGN_OR_RETURN(lane.out,
                                backend_->create_buffer({.bytes = placing.out_bytes, .window = set.lane}));
      lane.made = true;
    }
    uint32_t begin = 0;
    set.parts.reserve(placing.boundaries.size());
    for (const uint32_t boundary : placing.boundaries) {
      const uint32_t end = std::min(boundary, layout_.sets[s].neurons);
      if (begin == end) break;
      Part& part = set.parts.emplace_back(Part{.begin = begin, .end = end});
      const uint64_t bytes = uint64_t{end - begin} * (set.at.stride + set.at.gate_stride);
      GANGLION_ASSIGN_OR_RETURN(part.buffer, backend_->create_buffer({.bytes = bytes, .window = set.lane}));
      part.made = true;
      GANGLION_ASSIGN_OR_RETURN(part.view, backend_->begin_access(part.buffer, Access::kReadWrite));
      begin = end;
    }
  }
  const size_t smallest = layout_.buckets.front();
  calls_.reserve(layout_.most_units * base::ceil_div(layout_.most_rows, smallest));
  unit_ok_.reserve(layout_.most_units);
  return base::ok_status();
}

HotClusters::~HotClusters() {
  release();
}

void HotClusters::release() {
  if (backend_ == nullptr) return;
  drain();
  for (size_t s = 0; s < sets_.size(); ++s) {
    Set& set = sets_[s];
    for (const std::optional<accelerator::GraphId>& graph : set.graphs) {
      if (graph.has_value()) backend_->release(*graph);
    }
    for (Part& part : set.parts) {
      if (!part.view.empty()) (void)backend_->end_access(part.buffer);  // Nothing can be done about it here.
    }
    if (set.defined) backend_->remove_layer(static_cast<uint32_t>(s));
    for (const Part& part : set.parts) {
      if (part.made) backend_->destroy_buffer(part.buffer);
    }
  }
  for (const Lane& lane : lanes_) {
    if (!lane.made) continue;
    backend_->destroy_buffer(lane.x);
    backend_->destroy_buffer(lane.out);
  }
  lanes_.clear();
  sets_.clear();
  calls_.clear();
  backend_ = nullptr;
}

const HotClusters::Part* HotClusters::part_of(const Set& set, uint32_t neuron) {
  const auto found = std::find_if(set.parts.begin(), set.parts.end(), [&](const Part& part) {
    return neuron >= part.begin && neuron < part.end;
  });
  return found == set.parts.end() ? nullptr : &*found;
}

void HotClusters::take(uint32_t s, uint32_t neuron, const uint8_t* bundle) {
  const HotSet& from = layout_.sets[s];
  const RowPlaces& at = sets_[s].at;
  const Part* part = part_of(sets_[s], neuron);
  if (part == nullptr) return;
  uint8_t* to = part->view.data() + uint64_t{neuron - part->begin} * at.stride;
  if (!from.gates_apart) std::memcpy(to, bundle, at.gate_bytes);
  std::memcpy(to + at.up, bundle + from.up_offset, at.up_bytes);
  std::memcpy(to + at.down, bundle + from.down_offset, at.down_bytes);
}

void HotClusters::take_gate(uint32_t s, uint32_t neuron, const uint8_t* row) {
  const RowPlaces& at = sets_[s].at;
  const Part* part = part_of(sets_[s], neuron);
  if (part == nullptr) return;
  const uint64_t gates = uint64_t{part->end - part->begin} * at.stride;
  std::memcpy(part->view.data() + gates + uint64_t{neuron - part->begin} * at.gate_stride, row,
              at.gate_bytes);
}

Status HotClusters::add_blocks(uint32_t s) {
  Set& set = sets_[s];
  const HotSet& from = layout_.sets[s];
  const RowPlaces& at = set.at;
  GANGLION_RETURN_IF_ERROR(backend_->define_layer({.layer = s,
                                                   .dim = layout_.dim,
                                                   .block_neurons = layout_.block_neurons,
                                                   .format = from.format,
                                                   .activation = from.activation,
                                                   .threshold = from.threshold}));
  set.defined = true;
  for (const Part& part : set.parts) {
    const uint64_t gates = uint64_t{part.end - part.begin} * at.stride;
    for (uint32_t n = 0; n < part.end - part.begin; n += layout_.block_neurons) {
      const uint64_t bundles = uint64_t{n} * at.stride;
      accelerator::Rows gate = {{part.buffer, bundles}, at.stride};
      if (from.gates_apart) gate = {{part.buffer, gates + uint64_t{n} * at.gate_stride}, at.gate_stride};
      GANGLION_RETURN_IF_ERROR(
          backend_->add_block(s, {.gate = gate,
                                  .up = {{part.buffer, bundles + at.up}, at.stride},
                                  .down = {{part.buffer, bundles + at.down}, at.stride}}));
    }
  }
  return base::ok_status();
}

Status HotClusters::start() {
  for (uint32_t s = 0; s < sets_.size(); ++s) {
    Set& set = sets_[s];
    if (set.parts.empty()) continue;
    for (Part& part : set.parts) {
      GANGLION_RETURN_IF_ERROR(backend_->end_access(part.buffer));
      part.view = {};
    }
    GANGLION_RETURN_IF_ERROR(add_blocks(s));
    set.graphs.resize(layout_.buckets.size());
    for (size_t b = 0; b < layout_.buckets.size(); ++b) {
      const uint32_t blocks = std::min(layout_.neurons[b], layout_.sets[s].neurons) / layout_.block_neurons;
      if (blocks == 0) continue;
      GANGLION_ASSIGN_OR_RETURN(set.graphs[b],
                                backend_->prepare(accelerator::FfnShape{
                                    .layer = s, .bucket = layout_.buckets[b], .blocks = blocks}));
    }
  }
  return use_share(0);
}

size_t HotClusters::bucket_of(size_t rows) const {
  size_t b = 0;
  while (b + 1 < layout_.buckets.size() && layout_.buckets[b] < rows) ++b;
  return b;
}

uint64_t HotClusters::chunk_bytes(size_t bucket) const {
  return vectors_bytes(layout_.buckets[bucket], layout_.dim, backend_->capabilities());
}

uint32_t HotClusters::hot(uint32_t set, size_t rows) const {
  return std::min(layout_.neurons[bucket_of(rows)], layout_.sets[set].neurons);
}

const uint8_t* HotClusters::find(uint32_t s, uint32_t neuron) const {
  if (lost()) return nullptr;
  const Part* part = part_of(sets_[s], neuron);
  if (part == nullptr || part->view.empty()) return nullptr;
  return part->view.data() + uint64_t{neuron - part->begin} * sets_[s].at.stride;
}

// Opens the parts that the bucket's share leaves out to the processor, and closes the others.
Status HotClusters::use_share(size_t bucket) {
  const uint32_t hot = layout_.neurons[bucket];
  if (share_ != SIZE_MAX && layout_.neurons[share_] == hot) return base::ok_status();
  share_ = bucket;
  for (Set& set : sets_) {
    for (Part& part : set.parts) {
      const bool open = part.begin >= hot;
      if (open == !part.view.empty()) continue;
      if (open) {
        GANGLION_ASSIGN_OR_RETURN(part.view, backend_->begin_access(part.buffer, Access::kRead));
      } else {
        part.view = {};
        GANGLION_RETURN_IF_ERROR(backend_->end_access(part.buffer));
      }
    }
  }
  return base::ok_status();
}

bool HotClusters::write_x(Lane& lane, const float* x, size_t stride, size_t rows) {
  Result<std::span<uint8_t>> view = backend_->begin_access(lane.x, Access::kReadWrite);
  if (!view.ok()) return false;
  const size_t bucket = layout_.buckets[bucket_];
  const size_t row_bytes = layout_.dim * sizeof(float);
  for (size_t row = 0; row < chunks_ * bucket; ++row) {
    uint8_t* to = view.value().data() + row / bucket * chunk_bytes(bucket_) + row % bucket * row_bytes;
    if (row < rows) {
      std::memcpy(to, x + row * stride, row_bytes);
    } else {
      std::memset(to, 0, row_bytes);
    }
  }
  return backend_->end_access(lane.x).ok();
}

void HotClusters::begin(std::span<const uint32_t> sets, const float* x, size_t stride, size_t rows) {
  drain();
  calls_.clear();
  next_ = 0;
  unit_ok_.assign(sets.size(), 0);
  if (lost()) return;
  bucket_ = bucket_of(rows);
  chunks_ = base::ceil_div(rows, size_t{layout_.buckets[bucket_]});
  if (!use_share(bucket_).ok()) return give_up("its memory cannot be reached");
  for (Lane& lane : lanes_) lane.used = false;
  for (uint32_t u = 0; u < sets.size(); ++u) {
    if (hot(sets[u], rows) == 0) continue;
    Lane& lane = lanes_[sets_[sets[u]].lane];
    if (!std::exchange(lane.used, true) && !write_x(lane, x, stride, rows))
      return give_up("its memory cannot be reached");
    unit_ok_[u] = 1;
    for (size_t chunk = 0; chunk < chunks_; ++chunk) {
      calls_.push_back({.unit = u,
                        .set = sets[u],
                        .x_at = chunk * chunk_bytes(bucket_),
                        .out_at = (u * chunks_ + chunk) * chunk_bytes(bucket_)});
    }
  }
  pump();
}

HotClusters::Call* HotClusters::oldest(uint32_t lane) {
  for (size_t i = 0; i < next_; ++i) {
    if (calls_[i].state == Call::State::kSubmitted && sets_[calls_[i].set].lane == lane) return &calls_[i];
  }
  return nullptr;
}

void HotClusters::pump() {
  while (next_ < calls_.size() && !lost()) {
    const uint32_t lane = sets_[calls_[next_].set].lane;
    if (lanes_[lane].pending == backend_->capabilities().queue_depth) {
      settle(*oldest(lane), false);
      if (lanes_[lane].pending == backend_->capabilities().queue_depth) return;
      continue;
    }
    Call& call = calls_[next_++];
    if (!submit(call)) fail(call);
  }
}

bool HotClusters::submit(Call& call) {
  Set& set = sets_[call.set];
  Lane& lane = lanes_[set.lane];
  const Result<accelerator::Ticket> ticket = backend_->submit(lane.queue, {.graph = *set.graphs[bucket_],
                                                                           .x = {lane.x, call.x_at},
                                                                           .out = {lane.out, call.out_at},
                                                                           .weights = {}});
  if (!ticket.ok()) return false;
  call.ticket = ticket.value();
  call.state = Call::State::kSubmitted;
  ++lane.pending;
  ++stats_.calls;
  return true;
}

// Takes note of how a call ended, if it did.
void HotClusters::settle(Call& call, bool wait) {
  if (call.state != Call::State::kSubmitted) return;
  Lane& lane = lanes_[sets_[call.set].lane];
  Outcome outcome = backend_->poll(lane.queue, call.ticket);
  if (outcome == Outcome::kPending && wait)
    outcome = backend_->wait(lane.queue, call.ticket, backend_->now_ns() + kDeadlineNs);
  if (outcome == Outcome::kPending && !wait) return;
  call.state = Call::State::kEnded;
  --lane.pending;
  if (outcome == Outcome::kDone) {
    failures_in_a_row_ = 0;
    return;
  }
  if (outcome == Outcome::kPending)
    give_up(
        base::format("a call did not end within %lld s", static_cast<long long>(kDeadlineNs / 1000000000)));
  fail(call);
}

void HotClusters::fail(Call& call) {
  call.state = Call::State::kEnded;
  unit_ok_[call.unit] = 0;
  ++stats_.recomputed;
  if (backend_->lost()) give_up("the device is gone");
  if (++failures_in_a_row_ >= kMostFailures) give_up(base::format("%u calls in a row failed", kMostFailures));
}

void HotClusters::give_up(std::string why) {
  if (lost()) return;
  stats_.lost = std::move(why);
  if (!backend_->lost()) backend_->abandon();
  std::fill(unit_ok_.begin(), unit_ok_.end(), uint8_t{0});
}

void HotClusters::count_ahead() {
  for (size_t i = 0; i < next_; ++i) stats_.ahead += calls_[i].ticket != 0 ? 1 : 0;
}

void HotClusters::finish() {
  const int64_t start = platform::now_ns();
  while (next_ < calls_.size() && !lost()) {
    const size_t before = next_;
    pump();
    if (next_ == before) settle(*oldest(sets_[calls_[next_].set].lane), true);
  }
  for (Call& call : calls_) settle(call, true);
  for (; next_ < calls_.size(); ++next_) fail(calls_[next_]);
  stats_.wait_ns += platform::now_ns() - start;
}

// What a pass that was given up has left behind.
void HotClusters::drain() {
  next_ = std::min(next_, calls_.size());
  for (Call& call : calls_) settle(call, true);
}

bool HotClusters::map_results() {
  for (Lane& lane : lanes_) {
    if (!lane.made || !lane.used || lost()) continue;
    Result<std::span<uint8_t>> view = backend_->begin_access(lane.out, Access::kRead);
    if (view.ok()) {
      lane.view = view.value();
    } else {
      give_up("its memory cannot be reached");
    }
  }
  if (lost()) unmap_results();
  return !lost();
}

const float* HotClusters::result(size_t unit, size_t row) const {
  for (const Call& call : calls_) {
    if (call.unit != unit) continue;
    const size_t bucket = layout_.buckets[bucket_];
    const Lane& lane = lanes_[sets_[call.set].lane];
    const uint64_t at = call.out_at + row / bucket * chunk_bytes(bucket_);
    return reinterpret_cast<const float*>(lane.view.data() + at) + row % bucket * layout_.dim;
  }
  return nullptr;
}

void HotClusters::unmap_results() {
  for (Lane& lane : lanes_) {
    if (lane.view.empty()) continue;
    lane.view = {};
    // A device that is lost here gives no results any more; those read are good.
    if (!backend_->end_access(lane.out).ok()) give_up("its memory cannot be reached");
  }
}

}  // namespace ganglion::engine

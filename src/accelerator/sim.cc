#include "accelerator/sim.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "base/units.h"
#include "platform/clock.h"

namespace ganglion::accelerator {

using base::Code;
using base::Result;
using base::Status;
using base::TensorType;

namespace {

constexpr int64_t kNever = INT64_MAX;

Status lost_status() {
  return to_status(Outcome::kDeviceLost);
}

Status unsupported(std::string what) {
  return Status(Code::kUnsupported, "sim: " + std::move(what));
}

}  // namespace

Capabilities sim_capabilities() {
  Capabilities c;
  c.name = "sim";
  c.windows = {base::kGiB, base::kGiB};
  c.queues = {0, 1, 0};
  c.queue_depth = 4;
  c.graph_limit = 64;
  c.buffer_alignment = 64;
  c.row_alignment = 2;
  c.dim_multiple = 32;
  c.row_multiple = 16;
  c.ffn_buckets = {1, 2, 4, 8};
  c.matmul_buckets = {32, 128};
  c.matmul_types = {TensorType::kQ4_0, TensorType::kQ8_0, TensorType::kF16, TensorType::kF32};
  c.ffn_formats = uniform_formats(c.matmul_types);
  c.precision = Precision::kInt8;
  return c;
}

Sim::Sim(SimOptions options) : options_(std::move(options)), queues_(options_.capabilities.queues.size()) {
  for (Queue& queue : queues_) queue.ring.resize(options_.capabilities.queue_depth);
  thread_ = std::thread([this] { work(); });
}

Sim::~Sim() {
  {
    const Lock lock(mutex_);
    stop_ = true;
  }
  work_changed_.notify_all();
  thread_.join();
}

void Sim::inject(const SimFault& fault) {
  const Lock lock(mutex_);
  faults_.push_back(fault);
}

SimStats Sim::stats() const {
  const Lock lock(mutex_);
  return stats_;
}

Sim::Buffer& Sim::buffer(BufferId id) {
  const auto found = buffers_.find(static_cast<uint32_t>(id));
  GANGLION_CHECK(found != buffers_.end());
  return *found->second;
}

Result<BufferId> Sim::create_buffer(const BufferOptions& options) {
  const Lock lock(mutex_);
  if (lost_) return lost_status();
  GANGLION_CHECK(options.window < options_.capabilities.windows.size() && options.bytes > 0);
  if (options.host_memory != nullptr) return unsupported("takes no memory of others");
  uint64_t used = 0;
  for (const auto& [id, other] : buffers_) used += other->window == options.window ? other->bytes : 0;
  const uint64_t limit = options_.capabilities.windows[options.window];
  if (options.bytes > limit - used) {
    return Status(Code::kResources, "sim: a buffer of " + base::format_bytes(options.bytes) +
                                        " does not fit window " + std::to_string(options.window) + ": " +
                                        base::format_bytes(limit - used) + " are free");
  }
  GANGLION_ASSIGN_OR_RETURN(SimMemory memory, SimMemory::create(options.bytes));
  const uint32_t id = next_id_++;
  buffers_.emplace(id, new Buffer{std::move(memory), options.bytes, options.window});
  return BufferId{id};
}

void Sim::destroy_buffer(BufferId id) {
  const Lock lock(mutex_);
  const Buffer& gone = buffer(id);
  GANGLION_CHECK(!gone.open && gone.blocks == 0 && gone.pending == 0);
  buffers_.erase(static_cast<uint32_t>(id));
}

Result<std::span<uint8_t>> Sim::begin_access(BufferId id, Access access) {
  const Lock lock(mutex_);
  if (lost_) return lost_status();
  Buffer& b = buffer(id);
  GANGLION_CHECK(!b.open && b.pending == 0 && (access == Access::kRead || b.blocks == 0));
  b.memory.protect(access == Access::kRead ? SimMemory::Protection::kRead
                                           : SimMemory::Protection::kReadWrite);
  b.open = true;
  return std::span<uint8_t>(b.memory.processor(), b.bytes);
}

Status Sim::end_access(BufferId id) {
  const Lock lock(mutex_);
  Buffer& b = buffer(id);
  GANGLION_CHECK(b.open);
  b.memory.protect(SimMemory::Protection::kNone);
  b.open = false;
  return lost_ ? lost_status() : base::ok_status();
}

Status Sim::define_layer(const FfnLayer& layer) {
  const Lock lock(mutex_);
  const Capabilities& c = options_.capabilities;
  GANGLION_CHECK(!layers_.contains(layer.layer) && layer.dim > 0 && layer.block_neurons > 0);
  if (!contains(c.ffn_formats, layer.format)) return unsupported("no FFN of this format");
  if (layer.dim % c.dim_multiple != 0 || layer.block_neurons % c.row_multiple != 0) {
    return unsupported("no FFN of " + std::to_string(layer.dim) + " elements in blocks of " +
                       std::to_string(layer.block_neurons) + " neurons");
  }
  layers_[layer.layer].info = layer;
  return base::ok_status();
}

Result<const uint8_t*> Sim::place_rows(const Rows& rows, uint64_t row_bytes, const Layer& layer,
                                       uint32_t* window) {
  const uint32_t alignment = options_.capabilities.row_alignment;
  if (rows.at.offset % alignment != 0 || rows.stride % alignment != 0) {
    return unsupported("rows have to be aligned to " + std::to_string(alignment) + " bytes");
  }
  Buffer* in = nullptr;
  const uint8_t* at =
      place(rows.at, uint64_t{rows.stride} * (layer.info.block_neurons - 1) + row_bytes, alignment, &in);
  if (*window == UINT32_MAX) *window = in->window;
  if (*window != in->window) return unsupported("the blocks of a layer lie in one window");
  return at;
}

Status Sim::add_block(uint32_t layer, const FfnBlock& block) {
  const Lock lock(mutex_);
  if (lost_) return lost_status();
  const auto found = layers_.find(layer);
  GANGLION_CHECK(found != layers_.end());
  Layer& to = found->second;
  const FfnFormat& format = to.info.format;
  uint32_t window = to.blocks.empty() ? UINT32_MAX : to.window;
  GANGLION_ASSIGN_OR_RETURN(const uint8_t* gate,
                            place_rows(block.gate, base::row_bytes(format.gate, to.info.dim), to, &window));
  GANGLION_ASSIGN_OR_RETURN(const uint8_t* up,
                            place_rows(block.up, base::row_bytes(format.up, to.info.dim), to, &window));
  GANGLION_ASSIGN_OR_RETURN(
      const uint8_t* down,
      place_rows(block.down, kernels::down_row_bytes(format.down, to.info.dim), to, &window));
  to.window = window;
  to.rows.push_back({gate, up, down, block.gate.stride, block.up.stride, block.down.stride});
  to.blocks.push_back(block);
  for (const Rows* rows : {&block.gate, &block.up, &block.down}) ++buffer(rows->at.buffer).blocks;
  ++stats_.blocks;
  return base::ok_status();
}

void Sim::remove_layer(uint32_t layer) {
  const Lock lock(mutex_);
  const auto found = layers_.find(layer);
  GANGLION_CHECK(found != layers_.end() && found->second.graphs == 0);
  for (const FfnBlock& block : found->second.blocks) {
    for (const Rows* rows : {&block.gate, &block.up, &block.down}) --buffer(rows->at.buffer).blocks;
  }
  layers_.erase(found);
}

bool Sim::is_broken(const Operation& operation) const {
  return contains(options_.broken, operation);
}

Result<GraphId> Sim::add_graph(Graph graph) {
  if (graphs_.size() == options_.capabilities.graph_limit) {
    return Status(Code::kResources,
                  "sim: " + std::to_string(graphs_.size()) + " graphs are prepared, no more fit");
  }
  const uint32_t id = next_id_++;
  graphs_.emplace(id, std::make_unique<Graph>(std::move(graph)));
  ++stats_.prepared;
  return GraphId{id};
}

Result<GraphId> Sim::prepare(const FfnShape& shape) {
  const Lock lock(mutex_);
  if (lost_) return lost_status();
  const auto found = layers_.find(shape.layer);
  GANGLION_CHECK(found != layers_.end());
  Layer& layer = found->second;
  if (!contains(options_.capabilities.ffn_buckets, shape.bucket)) {
    return unsupported("no FFN of " + std::to_string(shape.bucket) + " tokens");
  }
  if (shape.blocks == 0 || shape.blocks > layer.rows.size()) {
    return unsupported("layer " + std::to_string(shape.layer) + " has " + std::to_string(layer.rows.size()) +
                       " blocks, not " + std::to_string(shape.blocks));
  }
  const FfnLayer& info = layer.info;
  const uint64_t neuron_bytes = base::row_bytes(info.format.gate, info.dim) +
                                base::row_bytes(info.format.up, info.dim) +
                                kernels::down_row_bytes(info.format.down, info.dim);
  const uint64_t vector_bytes = uint64_t{shape.bucket} * info.dim * sizeof(float);
  auto added =
      add_graph({.compute = FfnCompute(*options_.kernels, info,
                                       {layer.rows.begin(), layer.rows.begin() + shape.blocks}, shape.bucket),
                 .layer = shape.layer,
                 .window = layer.window,
                 .any_window = false,
                 .weight_bytes = neuron_bytes * info.block_neurons * shape.blocks,
                 .x_bytes = vector_bytes,
                 .out_bytes = vector_bytes,
                 .broken = is_broken({.kind = Operation::Kind::kFfn,
                                      .activation = info.activation,
                                      .format = info.format,
                                      .bucket = shape.bucket})});
  if (added.ok()) ++layer.graphs;
  return added;
}

Result<GraphId> Sim::prepare(const MatmulShape& shape) {
  const Lock lock(mutex_);
  if (lost_) return lost_status();
  const Capabilities& c = options_.capabilities;
  if (!contains(c.matmul_buckets, shape.bucket) || !contains(c.matmul_types, shape.type) || shape.rows == 0 ||
      shape.cols == 0 || shape.rows % c.row_multiple != 0 || shape.cols % c.dim_multiple != 0) {
    return unsupported("no matrix product of this shape");
  }
  return add_graph(
      {.compute = MatmulCompute(*options_.kernels, shape),
       .layer = 0,
       .window = 0,
       .any_window = true,
       .weight_bytes = base::row_bytes(shape.type, shape.cols) * shape.rows,
       .x_bytes = uint64_t{shape.bucket} * shape.cols * sizeof(float),
       .out_bytes = uint64_t{shape.bucket} * shape.rows * sizeof(float),
       .broken = is_broken({.kind = Operation::Kind::kMatmul, .type = shape.type, .bucket = shape.bucket})});
}

void Sim::release(GraphId id) {
  const Lock lock(mutex_);
  const auto found = graphs_.find(static_cast<uint32_t>(id));
  GANGLION_CHECK(found != graphs_.end() && found->second->pending == 0);
  if (!found->second->any_window) --layers_.at(found->second->layer).graphs;
  graphs_.erase(found);
}

// The device's address of a range that must lie in its buffer, to which the processor has no access.
uint8_t* Sim::place(const BufferRange& range, uint64_t bytes, uint32_t alignment, Buffer** in) {
  Buffer& b = buffer(range.buffer);
  GANGLION_CHECK(!b.open);
  GANGLION_CHECK(range.offset % alignment == 0 && range.offset <= b.bytes && bytes <= b.bytes - range.offset);
  *in = &b;
  return b.memory.device() + range.offset;
}

void Sim::apply_fault(Job* job) {
  for (const SimFault& fault : faults_) {
    if (fault.submission != stats_.submissions) continue;
    if (fault.kind == SimFault::Kind::kHang) job->due_ns = kNever;
    if (fault.kind == SimFault::Kind::kFail) job->at_end = Outcome::kFailed;
    if (fault.kind == SimFault::Kind::kLoseDevice) job->at_end = Outcome::kDeviceLost;
  }
}

Result<Ticket> Sim::submit(uint32_t queue_index, const Submission& submission) {
  const Lock lock(mutex_);
  if (lost_) return lost_status();
  GANGLION_CHECK(queue_index < queues_.size());
  Queue& queue = queues_[queue_index];
  if (queue.last - queue.ended == queue.ring.size()) {
    return Status(Code::kResources, "sim: the queue is full");
  }
  const auto found = graphs_.find(static_cast<uint32_t>(submission.graph));
  GANGLION_CHECK(found != graphs_.end());
  Graph* graph = found->second.get();
  const uint32_t alignment = options_.capabilities.buffer_alignment;
  Job job;
  job.graph = graph;
  job.x = reinterpret_cast<const float*>(place(submission.x, graph->x_bytes, alignment, &job.buffers[0]));
  job.out = reinterpret_cast<float*>(place(submission.out, graph->out_bytes, alignment, &job.buffers[1]));
  if (graph->any_window) {
    job.weights = place(submission.weights, graph->weight_bytes, alignment, &job.buffers[2]);
  }
  const uint32_t window = options_.capabilities.queues[queue_index];
  GANGLION_CHECK(graph->any_window || graph->window == window);
  for (Buffer* b : job.buffers) GANGLION_CHECK(b == nullptr || b->window == window);
  GANGLION_CHECK(job.buffers[1]->blocks == 0);
  int64_t cost = options_.latency_ns;
  if (options_.bytes_per_second > 0) {
    cost += static_cast<int64_t>(1e9 * static_cast<double>(graph->weight_bytes) /
                                 static_cast<double>(options_.bytes_per_second));
  }
  const int64_t start = std::max(now_locked(), queue.busy_until_ns);
  job.due_ns = start == kNever ? kNever : start + cost;
  ++stats_.submissions;
  apply_fault(&job);
  queue.busy_until_ns = job.due_ns;
  ++graph->pending;
  for (Buffer* b : job.buffers) {
    if (b != nullptr) ++b->pending;
  }
  queue.ring[++queue.last % queue.ring.size()] = job;
  work_changed_.notify_all();
  return queue.last;
}

int64_t Sim::now_locked() const {
  return options_.virtual_clock ? virtual_now_ns_ : platform::now_ns();
}

int64_t Sim::now_ns() const {
  const Lock lock(mutex_);
  return now_locked();
}

// Of the queues' first pending jobs, or of those that are not computed, the one that is due first.
Sim::Job* Sim::earliest(bool uncomputed, size_t* queue_index) {
  Job* best = nullptr;
  for (size_t q = 0; q < queues_.size(); ++q) {
    Queue& queue = queues_[q];
    if (queue.ended == queue.last) continue;
    Job& job = queue.ring[(queue.ended + 1) % queue.ring.size()];
    if ((uncomputed && job.computed) || (best != nullptr && best->due_ns <= job.due_ns)) continue;
    best = &job;
    *queue_index = q;
  }
  return best;
}

void Sim::compute(Job& job) {
  if (auto* ffn = std::get_if<FfnCompute>(&job.graph->compute)) {
    ffn->run(job.x, job.out);
  } else {
    std::get<MatmulCompute>(job.graph->compute).run(job.weights, job.x, job.out);
  }
  if (job.graph->broken) {
    for (uint64_t i = 0; i < job.graph->out_bytes / sizeof(float); ++i) job.out[i] = -2 * job.out[i] - 1;
  }
}

void Sim::end(Queue& queue, Outcome outcome) {
  Job& job = queue.ring[++queue.ended % queue.ring.size()];
  job.outcome = outcome;
  if (outcome != Outcome::kDone) std::memset(job.out, 0xFF, job.graph->out_bytes);
  --job.graph->pending;
  for (Buffer* b : job.buffers) {
    if (b != nullptr) --b->pending;
  }
  jobs_changed_.notify_all();
}

void Sim::lose(Lock& lock) {
  lost_ = true;
  jobs_changed_.wait(lock, [&] { return !computing_; });
  for (Queue& queue : queues_) {
    while (queue.ended < queue.last) end(queue, Outcome::kDeviceLost);
  }
  jobs_changed_.notify_all();
}

void Sim::abandon() {
  Lock lock(mutex_);
  lose(lock);
}

bool Sim::lost() const {
  const Lock lock(mutex_);
  return lost_;
}

void Sim::work() {
  Lock lock(mutex_);
  while (!stop_) {
    size_t q = 0;
    if (lost_) {
      work_changed_.wait(lock);
    } else if (Job* next = earliest(true, &q); next != nullptr) {
      computing_ = true;
      lock.unlock();
      compute(*next);
      lock.lock();
      next->computed = true;
      computing_ = false;
      jobs_changed_.notify_all();
    } else if (Job* first = earliest(false, &q); first == nullptr) {
      work_changed_.wait(lock);
    } else if (first->due_ns <= now_locked()) {
      if (first->at_end == Outcome::kDeviceLost) {
        lose(lock);
      } else {
        end(queues_[q], first->at_end);
      }
    } else if (options_.virtual_clock || first->due_ns == kNever) {
      work_changed_.wait(lock);
    } else {
      work_changed_.wait_for(lock, std::chrono::nanoseconds(first->due_ns - now_locked()));
    }
  }
}

// Virtual clock: until nothing is due any more.
void Sim::settle(Lock& lock) {
  jobs_changed_.wait(lock, [&] {
    size_t q = 0;
    const Job* first = earliest(false, &q);
    return first == nullptr || first->due_ns > virtual_now_ns_;
  });
}

void Sim::advance(int64_t ns) {
  Lock lock(mutex_);
  GANGLION_CHECK(options_.virtual_clock && ns >= 0);
  virtual_now_ns_ += ns;
  work_changed_.notify_all();
  settle(lock);
}

Outcome Sim::poll(uint32_t queue_index, Ticket ticket) {
  Lock lock(mutex_);
  GANGLION_CHECK(queue_index < queues_.size());
  const Queue& queue = queues_[queue_index];
  if (options_.virtual_clock) settle(lock);
  GANGLION_CHECK(ticket > 0 && ticket <= queue.last && ticket + queue.ring.size() > queue.last);
  return queue.ring[ticket % queue.ring.size()].outcome;
}

Outcome Sim::wait(uint32_t queue_index, Ticket ticket, int64_t deadline_ns) {
  for (;;) {
    const Outcome outcome = poll(queue_index, ticket);
    if (outcome != Outcome::kPending) return outcome;
    Lock lock(mutex_);
    if (now_locked() >= deadline_ns) return outcome;
    if (queues_[queue_index].ended >= ticket) continue;
    if (!options_.virtual_clock) {
      const int64_t left = std::min<int64_t>(deadline_ns - now_locked(), 1'000'000'000);
      jobs_changed_.wait_for(lock, std::chrono::nanoseconds(left));
      continue;
    }
    size_t q = 0;
    const Job* next = earliest(false, &q);
    const int64_t to = std::min(deadline_ns, next == nullptr ? kNever : next->due_ns);
    GANGLION_CHECK(to != kNever);  // It would be waited for without end.
    virtual_now_ns_ = std::max(virtual_now_ns_, to);
    work_changed_.notify_all();
  }
}

}  // namespace ganglion::accelerator

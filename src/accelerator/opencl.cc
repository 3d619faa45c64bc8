#include "accelerator/opencl.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "accelerator/opencl_backend.h"
#include "base/units.h"
#include "platform/clock.h"

namespace ganglion::accelerator {

using base::Code;
using base::Result;
using base::Status;

namespace {

Status unsupported(std::string what) {
  return Status(Code::kUnsupported, "opencl: " + std::move(what));
}

bool follows(const Rows& next, const Rows& before, uint32_t neurons) {
  return next.at.buffer == before.at.buffer && next.stride == before.stride &&
         next.at.offset == before.at.offset + uint64_t{neurons} * before.stride;
}

}  // namespace

Result<std::unique_ptr<Backend>> open_opencl(const OpenclOptions& options) {
  const std::vector<OpenclDevice> devices = find_opencl_devices();
  const int index = match_opencl_device(devices, options.device);
  if (index < 0) {
    return Status(Code::kNotFound, "no OpenCL device's name contains '" + std::string(options.device) + "'");
  }
  return Opencl::open(devices[static_cast<size_t>(index)], options.faults);
}

std::vector<std::string> opencl_devices() {
  std::vector<std::string> names;
  for (const OpenclDevice& device : find_opencl_devices()) names.push_back(device.label);
  return names;
}

Opencl::Opencl(const OpenclDevice& device, std::vector<OpenclFault> faults)
    : device_(device),
      capabilities_(opencl_capabilities(device)),
      ring_(capabilities_.queue_depth),
      faults_(std::move(faults)),
      wake_(OpenclWake::create()) {}

Result<std::unique_ptr<Backend>> Opencl::open(const OpenclDevice& device, std::vector<OpenclFault> faults) {
  std::unique_ptr<Opencl> made(new Opencl(device, std::move(faults)));
  const cl_context_properties properties[] = {CL_CONTEXT_PLATFORM,
                                              reinterpret_cast<cl_context_properties>(device.platform), 0};
  cl_int error = CL_SUCCESS;
  made->context_ = ClContext(clCreateContext(properties, 1, &device.id, nullptr, nullptr, &error));
  for (ClQueue* queue : {&made->compute_, &made->access_, &made->warm_}) {
    if (error == CL_SUCCESS)
      *queue = ClQueue(clCreateCommandQueue(made->context_.get(), device.id, 0, &error));
  }
  if (error != CL_SUCCESS) return Status(Code::kDevice, device.name + ": " + cl_error_text(error));
  made->programs_ = std::make_unique<OpenclPrograms>(made->context_.get(), device.id);
  return std::unique_ptr<Backend>(std::move(made));
}

int64_t Opencl::now_ns() const {
  return platform::now_ns();
}

Status Opencl::fail(const char* what, cl_int error) {
  abandon();
  return Status(Code::kDevice, "opencl: " + device_.name + ": " + what + ": " + cl_error_text(error));
}

/// Sleeps until the event has ended or the device is lost.
Status Opencl::await(const ClEvent& event) {
  for (uint32_t round = 0;; ++round) {
    cl_int status = CL_QUEUED;
    const cl_int error =
        clGetEventInfo(event.get(), CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof(status), &status, nullptr);
    if (error != CL_SUCCESS || status < 0) return fail("transfer", error != CL_SUCCESS ? error : status);
    if (status == CL_COMPLETE) return base::ok_status();
    if (lost_) return to_status(Outcome::kDeviceLost);
    if (round < 100) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }
}

Result<void*> Opencl::map(cl_mem mem, cl_map_flags flags, uint64_t bytes) {
  cl_int error = CL_SUCCESS;
  cl_event event = nullptr;
  void* at = clEnqueueMapBuffer(access_.get(), mem, CL_FALSE, flags, 0, bytes, 0, nullptr, &event, &error);
  const ClEvent mapped(event);
  if (error == CL_SUCCESS) error = clFlush(access_.get());
  if (error != CL_SUCCESS) return fail("map", error);
  GANGLION_RETURN_IF_ERROR(await(mapped));
  return at;
}

Status Opencl::unmap(cl_mem mem, void* at) {
  cl_event event = nullptr;
  cl_int error = clEnqueueUnmapMemObject(access_.get(), mem, at, 0, nullptr, &event);
  const ClEvent unmapped(event);
  if (error == CL_SUCCESS) error = clFlush(access_.get());
  return error == CL_SUCCESS ? await(unmapped) : fail("unmap", error);
}

Opencl::Buffer& Opencl::buffer(BufferId id) {
  const auto found = buffers_.find(static_cast<uint32_t>(id));
  GANGLION_CHECK(found != buffers_.end());
  return *found->second;
}

Result<BufferId> Opencl::create_buffer(const BufferOptions& options) {
  if (lost_) return to_status(Outcome::kDeviceLost);
  GANGLION_CHECK(options.window == 0 && options.bytes > 0);
  if (options.host_memory != nullptr && !device_.shares_memory)
    return unsupported("takes no memory of others");
  const Lock lock(mutex_);
  const uint64_t free = capabilities_.windows[0] - used_bytes_;
  cl_int error = options.bytes > free ? CL_MEM_OBJECT_ALLOCATION_FAILURE : CL_SUCCESS;
  cl_mem_flags flags = CL_MEM_READ_WRITE;
  if (device_.shares_memory) flags |= options.host_memory ? CL_MEM_USE_HOST_PTR : CL_MEM_ALLOC_HOST_PTR;
  ClMem mem;
  if (error == CL_SUCCESS) {
    mem = ClMem(clCreateBuffer(context_.get(), flags, options.bytes, options.host_memory, &error));
  }
  if (error != CL_SUCCESS) {
    return Status(Code::kResources, "opencl: a buffer of " + base::format_bytes(options.bytes) +
                                        " does not fit, " + base::format_bytes(free) +
                                        " are free: " + cl_error_text(error));
  }
  const uint32_t id = next_id_++;
  buffers_.emplace(id, new Buffer{.mem = std::move(mem), .bytes = options.bytes});
  used_bytes_ += options.bytes;
  return BufferId{id};
}

void Opencl::destroy_buffer(BufferId id) {
  const Lock lock(mutex_);
  if (!lost_) refresh();
  const Buffer& gone = buffer(id);
  GANGLION_CHECK(!gone.open && gone.blocks == 0 && gone.pending == 0);
  used_bytes_ -= gone.bytes;
  buffers_.erase(static_cast<uint32_t>(id));
}

Result<std::span<uint8_t>> Opencl::begin_access(BufferId id, Access access) {
  if (lost_) return to_status(Outcome::kDeviceLost);
  Buffer* b = nullptr;
  {
    const Lock lock(mutex_);
    refresh();
    b = &buffer(id);
    GANGLION_CHECK(!b->open && b->pending == 0 && (access == Access::kRead || b->blocks == 0));
    b->open = true;
  }
  const cl_map_flags flags = access == Access::kRead ? CL_MAP_READ : CL_MAP_READ | CL_MAP_WRITE;
  const Result<void*> mapped = map(b->mem.get(), flags, b->bytes);
  if (!mapped.ok()) {
    b->open = false;
    return mapped.status();
  }
  b->mapped = mapped.value();
  return std::span<uint8_t>(static_cast<uint8_t*>(b->mapped), b->bytes);
}

Status Opencl::end_access(BufferId id) {
  Buffer* b = nullptr;
  {
    const Lock lock(mutex_);
    b = &buffer(id);
    GANGLION_CHECK(b->open);
  }
  const Status status = lost_ ? to_status(Outcome::kDeviceLost) : unmap(b->mem.get(), b->mapped);
  const Lock lock(mutex_);
  b->open = false;
  return status;
}

Status Opencl::define_layer(const FfnLayer& layer) {
  const Lock lock(mutex_);
  GANGLION_CHECK(!layers_.contains(layer.layer) && layer.dim > 0 && layer.block_neurons > 0);
  if (!contains(capabilities_.ffn_formats, layer.format)) return unsupported("no FFN of this format");
  const uint32_t block = base::tensor_type_info(layer.format.gate).block_elems;
  if (layer.dim % std::max(block, capabilities_.dim_multiple) != 0) {
    return unsupported("no FFN of " + std::to_string(layer.dim) + " elements");
  }
  layers_[layer.layer].info = layer;
  return base::ok_status();
}

Status Opencl::check_rows(const Rows& rows, uint64_t row_bytes, uint32_t neurons) {
  const uint32_t alignment = capabilities_.row_alignment;
  if (rows.at.offset % alignment != 0 || rows.stride % alignment != 0) {
    return unsupported("rows have to be aligned to " + std::to_string(alignment) + " bytes");
  }
  const Buffer& in = buffer(rows.at.buffer);
  const uint64_t bytes = uint64_t{rows.stride} * (neurons - 1) + row_bytes;
  GANGLION_CHECK(!in.open && rows.at.offset <= in.bytes && bytes <= in.bytes - rows.at.offset);
  return base::ok_status();
}

Status Opencl::add_block(uint32_t layer, const FfnBlock& block) {
  if (lost_) return to_status(Outcome::kDeviceLost);
  const Lock lock(mutex_);
  const auto found = layers_.find(layer);
  GANGLION_CHECK(found != layers_.end());
  const FfnLayer& info = found->second.info;
  const uint32_t n = info.block_neurons;
  GANGLION_RETURN_IF_ERROR(check_rows(block.gate, base::row_bytes(info.format.gate, info.dim), n));
  GANGLION_RETURN_IF_ERROR(check_rows(block.up, base::row_bytes(info.format.up, info.dim), n));
  GANGLION_RETURN_IF_ERROR(check_rows(block.down, kernels::down_row_bytes(info.format.down, info.dim), n));
  found->second.blocks.push_back(block);
  for (const Rows* rows : {&block.gate, &block.up, &block.down}) ++buffer(rows->at.buffer).blocks;
  return base::ok_status();
}

void Opencl::remove_layer(uint32_t layer) {
  const Lock lock(mutex_);
  const auto found = layers_.find(layer);
  GANGLION_CHECK(found != layers_.end() && found->second.graphs == 0);
  for (const FfnBlock& block : found->second.blocks) {
    for (const Rows* rows : {&block.gate, &block.up, &block.down}) --buffer(rows->at.buffer).blocks;
  }
  layers_.erase(found);
}

Result<GraphId> Opencl::prepare(const FfnShape& shape) {
  if (lost_) return to_status(Outcome::kDeviceLost);
  FfnLayer info;
  std::vector<OpenclRun> runs;
  {
    const Lock lock(mutex_);
    const auto found = layers_.find(shape.layer);
    GANGLION_CHECK(found != layers_.end());
    const std::vector<FfnBlock>& blocks = found->second.blocks;
    info = found->second.info;
    if (!contains(capabilities_.ffn_buckets, shape.bucket)) {
      return unsupported("no FFN of " + std::to_string(shape.bucket) + " tokens");
    }
    if (shape.blocks == 0 || shape.blocks > blocks.size()) {
      return unsupported("layer " + std::to_string(shape.layer) + " has " + std::to_string(blocks.size()) +
                         " blocks, not " + std::to_string(shape.blocks));
    }
    const auto part = [&](const Rows& rows) {
      return OpenclRun::Part{buffer(rows.at.buffer).mem.get(), rows.at.offset, rows.stride};
    };
    for (uint32_t k = 0; k < shape.blocks; ++k) {
      const FfnBlock& block = blocks[k];
      const uint32_t n = info.block_neurons;
      const bool more = k > 0 && follows(block.gate, blocks[k - 1].gate, n) &&
                        follows(block.up, blocks[k - 1].up, n) && follows(block.down, blocks[k - 1].down, n);
      if (!more) runs.push_back({part(block.gate), part(block.up), part(block.down), 0});
      runs.back().neurons += n;
    }
    ++found->second.graphs;
  }
  auto graph = make_ffn_graph(*programs_, context_.get(), info, runs, shape.bucket);
  auto added = graph.ok() ? warm_up_and_add(graph.take()) : Result<GraphId>(graph.status());
  if (!added.ok()) {
    const Lock lock(mutex_);
    --layers_.at(shape.layer).graphs;
  }
  return added;
}

Result<GraphId> Opencl::prepare(const MatmulShape& shape) {
  if (lost_) return to_status(Outcome::kDeviceLost);
  const Capabilities& c = capabilities_;
  if (!contains(c.matmul_buckets, shape.bucket) || !contains(c.matmul_types, shape.type) || shape.rows == 0 ||
      shape.cols == 0 ||
      shape.cols % std::max(base::tensor_type_info(shape.type).block_elems, c.dim_multiple) != 0) {
    return unsupported("no matrix product of this shape");
  }
  GANGLION_ASSIGN_OR_RETURN(OpenclGraph graph, make_matmul_graph(*programs_, shape));
  return warm_up_and_add(std::move(graph));
}

/// Starts one group of each kernel: some drivers compile then, or take memory.
Result<GraphId> Opencl::warm_up_and_add(OpenclGraph graph) {
  const uint64_t bytes[] = {graph.x_bytes, graph.out_bytes, std::max<uint64_t>(graph.tile_bytes, 1)};
  ClMem memory[3];
  for (size_t i = 0; i < 3; ++i) {
    cl_int error = CL_SUCCESS;
    memory[i] = ClMem(clCreateBuffer(context_.get(), CL_MEM_READ_WRITE, bytes[i], nullptr, &error));
    if (error != CL_SUCCESS) return Status(Code::kResources, "opencl: no room: " + cl_error_text(error));
  }
  const OpenclPlaces places = {
      .x = {memory[0].get()}, .out = {memory[1].get()}, .weights = {memory[2].get()}};
  cl_event event = nullptr;
  const cl_int error = start_graph(warm_.get(), graph, places, nullptr, true, &event);
  const ClEvent done(event);
  if (error != CL_SUCCESS) return fail("first start of a graph", error);
  GANGLION_RETURN_IF_ERROR(await(done));
  const Lock lock(mutex_);
  if (graphs_.size() == capabilities_.graph_limit) {
    return Status(Code::kResources,
                  "opencl: " + std::to_string(graphs_.size()) + " graphs are prepared, no more fit");
  }
  const uint32_t id = next_id_++;
  graphs_.emplace(id, std::make_unique<OpenclGraph>(std::move(graph)));
  return GraphId{id};
}

void Opencl::release(GraphId id) {
  const Lock lock(mutex_);
  if (!lost_) refresh();
  const auto found = graphs_.find(static_cast<uint32_t>(id));
  GANGLION_CHECK(found != graphs_.end() && found->second->pending == 0);
  if (found->second->is_ffn) --layers_.at(found->second->layer).graphs;
  graphs_.erase(found);
}

}  // namespace ganglion::accelerator

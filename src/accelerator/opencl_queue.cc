// Submissions of the OpenCL backend: tickets, their events, the end of the device.
#include <algorithm>
#include <chrono>
#include <thread>

#include "accelerator/opencl_backend.h"
#include "platform/clock.h"

namespace ganglion::accelerator {

using base::Code;
using base::Result;
using base::Status;

namespace {

/// How long wait() asks again and again before it sleeps: a sleep costs as much as a small submission.
constexpr int64_t kSpinNs = 50'000;
/// The longest sleep: for drivers whose callbacks come late or not at all.
constexpr int64_t kSleepNs = 1'000'000;
/// What the destructor grants submissions that it cannot call back.
constexpr int64_t kGraceNs = 5'000'000'000;

cl_int status_of(const ClEvent& event) {
  cl_int status = CL_QUEUED;
  const cl_int error =
      clGetEventInfo(event.get(), CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof(status), &status, nullptr);
  return error == CL_SUCCESS ? status : error;
}

}  // namespace

OpenclPlace Opencl::place(const BufferRange& range, uint64_t bytes, Buffer** in) {
  Buffer& b = buffer(range.buffer);
  GANGLION_CHECK(!b.open && range.offset % capabilities_.buffer_alignment == 0);
  GANGLION_CHECK(range.offset <= b.bytes && bytes <= b.bytes - range.offset);
  *in = &b;
  return {.mem = b.mem.get(), .offset = range.offset};
}

const OpenclFault* Opencl::fault_of(Ticket ticket) const {
  const auto found = std::find_if(faults_.begin(), faults_.end(),
                                  [&](const OpenclFault& f) { return f.submission == ticket; });
  return found == faults_.end() ? nullptr : &*found;
}

/// Starts a graph, or does what a fault asks for.
cl_int Opencl::start(const OpenclGraph& graph, const OpenclPlaces& places, cl_event* done) {
  const OpenclFault* fault = fault_of(last_ + 1);
  if (fault != nullptr && fault->kind == OpenclFault::Kind::kRefused) return CL_OUT_OF_RESOURCES;
  if (fault == nullptr || fault->kind != OpenclFault::Kind::kHang) {
    return start_graph(compute_.get(), graph, places, nullptr, false, done);
  }
  cl_int error = CL_SUCCESS;
  ClEvent gate(clCreateUserEvent(context_.get(), &error));
  if (error == CL_SUCCESS) error = start_graph(compute_.get(), graph, places, gate.get(), false, done);
  held_.push_back(std::move(gate));
  return error;
}

Result<Ticket> Opencl::submit(uint32_t queue, const Submission& submission) {
  const Lock lock(mutex_);
  if (lost_) return to_status(Outcome::kDeviceLost);
  GANGLION_CHECK(queue == 0);
  refresh();
  if (lost_) return to_status(Outcome::kDeviceLost);
  if (last_ - ended_ == ring_.size()) return Status(Code::kResources, "opencl: the queue is full");
  const auto found = graphs_.find(static_cast<uint32_t>(submission.graph));
  GANGLION_CHECK(found != graphs_.end());
  OpenclGraph* graph = found->second.get();
  Job job;
  job.graph = graph;
  OpenclPlaces places;
  places.x = place(submission.x, graph->x_bytes, &job.buffers[0]);
  places.out = place(submission.out, graph->out_bytes, &job.buffers[1]);
  if (!graph->is_ffn) places.weights = place(submission.weights, graph->weight_bytes, &job.buffers[2]);
  GANGLION_CHECK(job.buffers[1]->blocks == 0);
  cl_event done = nullptr;
  const cl_int error = start(*graph, places, &done);
  job.done = ClEvent(done);
  if (error != CL_SUCCESS) {
    lose();
    return Status(Code::kDevice, "opencl: " + device_.name + ": submission: " + cl_error_text(error));
  }
  wake_->notify_at_end_of(done);
  ++graph->pending;
  for (Buffer* b : job.buffers) {
    if (b != nullptr) ++b->pending;
  }
  ring_[++last_ % ring_.size()] = std::move(job);
  return last_;
}

void Opencl::end(Job& job, Outcome outcome) {
  job.outcome = outcome;
  --job.graph->pending;
  for (Buffer* b : job.buffers) {
    if (b != nullptr) --b->pending;
  }
}

/// Ends what the driver has ended.
void Opencl::refresh() {
  while (!lost_ && ended_ < last_) {
    Job& job = ring_[(ended_ + 1) % ring_.size()];
    cl_int status = status_of(job.done);
    const OpenclFault* fault = fault_of(ended_ + 1);
    if (fault != nullptr && fault->kind == OpenclFault::Kind::kError) status = CL_OUT_OF_RESOURCES;
    if (status < 0) return lose();
    if (status != CL_COMPLETE) return;
    end(job, Outcome::kDone);
    job.done.reset();
    ++ended_;
  }
}

void Opencl::lose() {
  lost_ = true;
  for (; ended_ < last_; ++ended_) end(ring_[(ended_ + 1) % ring_.size()], Outcome::kDeviceLost);
  wake_->notify();
}

void Opencl::abandon() {
  const Lock lock(mutex_);
  lose();
}

Outcome Opencl::poll(uint32_t queue, Ticket ticket) {
  const Lock lock(mutex_);
  refresh();
  GANGLION_CHECK(queue == 0 && ticket > 0 && ticket <= last_ && ticket + ring_.size() > last_);
  return ring_[ticket % ring_.size()].outcome;
}

Outcome Opencl::wait(uint32_t queue, Ticket ticket, int64_t deadline_ns) {
  const int64_t start = platform::now_ns();
  for (;;) {
    const uint64_t seen = wake_->count();
    const Outcome outcome = poll(queue, ticket);
    const int64_t now = platform::now_ns();
    if (outcome != Outcome::kPending || now >= deadline_ns) return outcome;
    if (now - start < kSpinNs) {
      std::this_thread::yield();
    } else {
      wake_->wait(seen, std::min(deadline_ns - now, kSleepNs));
    }
  }
}

bool Opencl::everything_ended() const {
  return std::all_of(ring_.begin(), ring_.end(), [](const Job& job) {
    if (!job.done) return true;
    const cl_int status = status_of(job.done);
    return status == CL_COMPLETE || status < 0;
  });
}

Opencl::~Opencl() {
  for (const ClEvent& gate : held_) clSetUserEventStatus(gate.get(), CL_COMPLETE);
  const int64_t until = platform::now_ns() + kGraceNs;
  while (!everything_ended() && platform::now_ns() < until) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  if (!everything_ended()) {
    // Releasing them would wait for a device that hangs.
    for (ClQueue* queue : {&compute_, &access_, &warm_}) queue->leak();
    context_.leak();
  }
  wake_->leave();
}

}  // namespace ganglion::accelerator

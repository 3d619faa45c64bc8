// What an accelerator does for the engine: a closed vocabulary of two operations with static shapes, computed
// asynchronously beside the processor. Implemented by sim.h and the runtimes' backends; called by the engine.
//
//   Weights:  create_buffer -> begin_access, read into it, end_access -> define_layer, add_block ...
//   Graphs:   prepare (slow, on any thread) -> submit ... -> release
//   A token:  begin_access, write x, end_access -> submit -> (the processor computes) -> wait ->
//   begin_access,
//             read out, end_access
//
// Threads: every call may run beside every other, with two exceptions: a queue has one submitting thread at a
// time, and nothing is destroyed, removed or released while another call uses it. submit, poll, wait,
// begin_access and end_access allocate nothing unless they fail.
//
// Once the device is lost it stays lost: all pending tickets end, and calls that need it return kDevice.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "base/tensor_type.h"
#include "kernels/kernel_table.h"

namespace ganglion::accelerator {

/// kRelu with a threshold above 0 is FATReLU.
enum class Activation : uint8_t { kRelu, kDRelu, kSilu };
inline constexpr Activation kActivations[] = {Activation::kRelu, Activation::kDRelu, Activation::kSilu};
std::string_view activation_name(Activation activation);

/// What activations are rounded to on the device; decides the tolerance of the self-test.
enum class Precision : uint8_t { kF32, kF16, kInt8 };

/// Types of a neuron's rows: gate and up as GGUF has them, down transposed as in packs.
struct FfnFormat {
  base::TensorType gate;
  base::TensorType up;
  kernels::DownType down;
  bool operator==(const FfnFormat&) const = default;
};

/// Facts about a device. Buffers lie in a window of device-visible memory; all that a submission touches lies
/// in the window of its queue.
struct Capabilities {
  std::string name;                   ///< "sim", "opencl:..."
  std::vector<uint64_t> windows;      ///< Bytes of each.
  std::vector<uint32_t> queues;       ///< The window of each.
  uint32_t queue_depth = 0;           ///< Submissions of a queue that may be pending.
  uint32_t graph_limit = 0;           ///< Graphs prepared at a time.
  bool imports_host_memory = false;   ///< create_buffer() takes memory of the caller.
  uint32_t buffer_alignment = 0;      ///< Of activations and MatMul weights in buffers, and of host memory.
  uint32_t row_alignment = 0;         ///< Of FFN rows in buffers; their strides are multiples of it.
  uint32_t dim_multiple = 0;          ///< D and the MatMul's columns are multiples of it,
  uint32_t row_multiple = 0;          ///< and so are a block's neurons and the MatMul's rows.
  std::vector<uint32_t> ffn_buckets;  ///< Token counts of FFN shapes, ascending.
  std::vector<uint32_t> matmul_buckets;  ///< Likewise of MatMul shapes.
  std::vector<FfnFormat> ffn_formats;
  std::vector<base::TensorType> matmul_types;
  Precision precision = Precision::kF32;
  int64_t hop_ns =
      0;  ///< From submit to completion of nothing: assumed by the backend, measured by the planner.
};

/// FFNs whose gates and ups have one of the types, with down rows of any.
std::vector<FfnFormat> uniform_formats(std::span<const base::TensorType> types);
/// Of the lists above.
template <typename T>
bool contains(const std::vector<T>& list, const T& value) {
  return std::find(list.begin(), list.end(), value) != list.end();
}

/// The smallest bucket that holds `tokens`, or 0.
uint32_t bucket_for(std::span<const uint32_t> buckets, size_t tokens);

enum class BufferId : uint32_t {};
enum class GraphId : uint32_t {};
/// Counts the submissions of one queue from 1. A queue completes them in order: where a ticket has ended, all
/// before it have.
using Ticket = uint64_t;

struct BufferOptions {
  uint64_t bytes = 0;
  uint32_t window = 0;
  uint8_t* host_memory = nullptr;  ///< Where not null: `bytes` of the caller's that become the buffer.
};

enum class Access : uint8_t { kRead, kReadWrite };

/// A place in a buffer.
struct BufferRange {
  BufferId buffer{};
  uint64_t offset = 0;
};

/// The FFN of a layer, or of one expert of it: the caller numbers them as it likes.
struct FfnLayer {
  uint32_t layer = 0;
  uint32_t dim = 0;            ///< D
  uint32_t block_neurons = 0;  ///< Neurons of each block: N.
  FfnFormat format{};
  Activation activation = Activation::kRelu;
  /// ReLU kinds: a gate counts where it is above this. SiLU: where |silu(gate)| is above it, or everywhere
  /// if it is below 0.
  float threshold = 0;
};

/// Rows of a block, `stride` bytes apart.
struct Rows {
  BufferRange at;
  uint32_t stride = 0;
};
/// N neurons: rows gate [N][D], up [N][D], down [N][D]. Of bundles, all three have one buffer and stride.
struct FfnBlock {
  Rows gate;
  Rows up;
  Rows down;
};

/// out [bucket][D] = sum over the neurons of the layer's first `blocks` blocks, ascending, of
/// act(gate x) * (up x) * down row; x [bucket][D].
struct FfnShape {
  uint32_t layer = 0;
  uint32_t bucket = 0;
  uint32_t blocks = 0;
};
/// out [bucket][rows] = x [bucket][cols] times weights [rows][cols], transposed. The weights come with each
/// submission.
struct MatmulShape {
  base::TensorType type{};
  uint32_t rows = 0;
  uint32_t cols = 0;
  uint32_t bucket = 0;
};

/// What the self-test tells apart.
struct Operation {
  enum class Kind : uint8_t { kFfn, kMatmul };
  Kind kind = Kind::kFfn;
  Activation activation{};  ///< Of FFN,
  FfnFormat format{};       ///< likewise.
  base::TensorType type{};  ///< Of MatMul.
  uint32_t bucket = 0;
  bool operator==(const Operation&) const = default;
};
/// "ffn relu Q4_0 Q4_0 q6, 4 tokens", "matmul Q4_0, 32 tokens".
std::string operation_name(const Operation& operation);

/// All values are f32; `out` is overwritten and touches nothing that is read. Rows of the bucket that the
/// caller does not need must hold finite values.
struct Submission {
  GraphId graph{};
  BufferRange x;
  BufferRange out;
  BufferRange weights;  ///< Of MatMul.
};

enum class Outcome : uint8_t {
  kDone,
  kPending,     ///< poll: not yet. wait: not at the deadline; its buffers remain in use.
  kFailed,      ///< This submission; `out` is unspecified. Others go on.
  kDeviceLost,  ///< `out` is unspecified.
};
/// kDevice with a message for all but kDone; kPending is a timeout.
base::Status to_status(Outcome outcome);

class Backend {
 public:
  /// Pending submissions are given up. All views of buffers end.
  virtual ~Backend() = default;
  virtual const Capabilities& capabilities() const = 0;

  /// Errors: kResources (the window is full), kUnsupported (host memory), kDevice.
  virtual base::Result<BufferId> create_buffer(const BufferOptions& options) = 0;
  /// Requires: no block, access or pending submission uses it.
  virtual void destroy_buffer(BufferId buffer) = 0;

  /// The processor may touch the buffer until end_access(), and at no other time. The address may change
  /// between accesses. Requires: the buffer has no access and no pending submission; kReadWrite: no block
  /// lies in it. Errors: kDevice.
  virtual base::Result<std::span<uint8_t>> begin_access(BufferId buffer, Access access) = 0;
  virtual base::Status end_access(BufferId buffer) = 0;

  /// Errors: kUnsupported (format, shape).
  virtual base::Status define_layer(const FfnLayer& layer) = 0;
  /// The next block of a layer, for every graph that contains it: bytes are uploaded once, and what lies
  /// there does not change until remove_layer(). Requires: no access to its buffers. Errors: kUnsupported
  /// (alignment, window), kDevice.
  virtual base::Status add_block(uint32_t layer, const FfnBlock& block) = 0;
  /// Requires: no graph of it is prepared.
  virtual void remove_layer(uint32_t layer) = 0;

  /// Compiles and loads. Takes long: for a thread of its own, before the shape is needed.
  /// Errors: kUnsupported (no such bucket, shape, blocks), kResources (graph_limit), kDevice.
  virtual base::Result<GraphId> prepare(const FfnShape& shape) = 0;
  virtual base::Result<GraphId> prepare(const MatmulShape& shape) = 0;
  /// Requires: no pending submission of it.
  virtual void release(GraphId graph) = 0;

  /// Requires: no access to any buffer that it touches; ranges inside buffers, aligned.
  /// Errors: kResources (queue_depth are pending), kDevice.
  virtual base::Result<Ticket> submit(uint32_t queue, const Submission& submission) = 0;
  /// Of a ticket that is at most queue_depth older than the queue's last.
  virtual Outcome poll(uint32_t queue, Ticket ticket) = 0;
  /// Sleeps until the ticket has ended or now_ns() is the deadline.
  virtual Outcome wait(uint32_t queue, Ticket ticket, int64_t deadline_ns) = 0;
  /// The clock of deadlines: monotonic.
  virtual int64_t now_ns() const = 0;

  /// Gives the device up, as after a timeout: it counts as lost.
  virtual void abandon() = 0;
  virtual bool lost() const = 0;
};

}  // namespace ganglion::accelerator

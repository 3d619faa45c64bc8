#include "accelerator/self_test.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <numeric>

#include "accelerator/sample_layer.h"
#include "base/units.h"
#include "kernels/random_blocks.h"

namespace ganglion::accelerator {

using base::Code;
using base::Result;
using base::Status;
using base::TensorType;

namespace {

/// The layer has three blocks of which the graphs take two: a prefix.
constexpr uint32_t kBlocks = 3;
constexpr uint32_t kPrefix = 2;
constexpr uint32_t kLeastDim = 96;
constexpr uint32_t kLeastNeurons = 16;
constexpr uint32_t kLeastRows = 80;

double tolerance_of(Precision precision) {
  switch (precision) {
    case Precision::kF32:
      return 1e-6;
    case Precision::kF16:
      return 5e-4;
    case Precision::kInt8:
      break;
  }
  return 5e-3;
}

/// Kinds have thresholds of their own so that all forms of the comparison are seen.
float threshold_of(Activation activation) {
  return activation == Activation::kRelu ? 0.05F : activation == Activation::kDRelu ? 0.0F : 0.02F;
}

uint32_t multiple(uint32_t least, uint32_t of) {
  return static_cast<uint32_t>(base::round_up(least, of));
}

/// What an operation has to give, and by how much each element may differ.
struct Expected {
  std::vector<double> out;
  std::vector<double> allowed;
};

Expected expected_matmul(const std::vector<uint8_t>& weights, const MatmulShape& shape,
                         const std::vector<float>& x, double tolerance) {
  const size_t stride = base::row_bytes(shape.type, shape.cols);
  std::vector<float> row(shape.cols);
  Expected e;
  e.out.resize(size_t{shape.bucket} * shape.rows);
  e.allowed.resize(e.out.size());
  for (size_t r = 0; r < shape.rows; ++r) {
    kernels::reference_table().dequantize[static_cast<size_t>(shape.type)](weights.data() + r * stride,
                                                                           shape.cols, row.data());
    for (size_t t = 0; t < shape.bucket; ++t) {
      const Dot product = dot(row, x.data() + t * shape.cols);
      e.out[t * shape.rows + r] = product.value;
      e.allowed[t * shape.rows + r] = tolerance * product.size;
    }
  }
  return e;
}

Expected expected_ffn(const SampleBundles& bundles, const std::vector<float>& x, double tolerance) {
  FfnTruth truth = ffn_truth(bundles, kPrefix, x, 10 * tolerance);
  Expected e{.out = std::move(truth.out), .allowed = std::move(truth.slack)};
  for (size_t i = 0; i < e.allowed.size(); ++i) e.allowed[i] += tolerance * truth.sizes[i];
  return e;
}

/// The largest error as a share of what is allowed; infinite where a value is not finite.
double worst_error(const float* got, const Expected& e) {
  double worst = 0;
  for (size_t i = 0; i < e.out.size(); ++i) {
    const double error = std::fabs(static_cast<double>(got[i]) - e.out[i]);
    if (!std::isfinite(error)) return std::numeric_limits<double>::infinity();
    if (error > 0) worst = std::max(worst, error / e.allowed[i]);
  }
  return worst;
}

/// A run of all operations: one at a time, each with buffers of its own.
class Trial {
 public:
  Trial(Backend& backend, const SelfTestOptions& options)
      : backend_(backend),
        options_(options),
        capabilities_(backend.capabilities()),
        window_(capabilities_.queues[options.queue]),
        tolerance_(tolerance_of(capabilities_.precision)) {}

  /// Adds to the report. Errors: those that end the self-test.
  Status run(const Operation& operation, SelfTestReport* report);

 private:
  Status run_ffn(const Operation& operation);
  Status run_matmul(const Operation& operation);
  Status compute(GraphId graph, const std::vector<float>& x, BufferRange weights, const Expected& expected);
  Status submit_and_wait(const Submission& submission);
  Result<BufferId> create(uint64_t bytes);
  Result<std::span<uint8_t>> fill(BufferId id, const void* bytes, size_t count, uint64_t offset);
  std::vector<float> random_x(size_t n);
  void clean_up();
  uint32_t dim(TensorType a, TensorType b) const {
    const uint32_t block =
        std::lcm(base::tensor_type_info(a).block_elems, base::tensor_type_info(b).block_elems);
    return multiple(kLeastDim, std::lcm(block, capabilities_.dim_multiple));
  }

  Backend& backend_;
  const SelfTestOptions& options_;
  const Capabilities& capabilities_;
  const uint32_t window_;
  const double tolerance_;
  uint64_t seed_ = 71;
  double worst_ = 0;
  // Of the operation that runs.
  std::vector<BufferId> buffers_;
  std::vector<GraphId> graphs_;
  bool layer_ = false;
};

Result<BufferId> Trial::create(uint64_t bytes) {
  auto id = backend_.create_buffer({.bytes = bytes, .window = window_});
  if (id.ok()) buffers_.push_back(id.value());
  return id;
}

/// Writes to a buffer; what is around the bytes is set to 0xFF, which are no numbers.
Result<std::span<uint8_t>> Trial::fill(BufferId id, const void* bytes, size_t count, uint64_t offset) {
  GANGLION_ASSIGN_OR_RETURN(const std::span<uint8_t> view, backend_.begin_access(id, Access::kReadWrite));
  std::memset(view.data(), 0xFF, view.size());
  if (count > 0) std::memcpy(view.data() + offset, bytes, count);
  GANGLION_RETURN_IF_ERROR(backend_.end_access(id));
  return view;
}

std::vector<float> Trial::random_x(size_t n) {
  std::vector<float> x(n);
  for (float& v : x) v = static_cast<float>(kernels::next_random(&seed_) >> 40) * 0x1p-23F - 1;
  return x;
}

Status Trial::submit_and_wait(const Submission& submission) {
  GANGLION_ASSIGN_OR_RETURN(const Ticket ticket, backend_.submit(options_.queue, submission));
  const Outcome outcome = backend_.wait(options_.queue, ticket, backend_.now_ns() + options_.timeout_ns);
  const Status status = to_status(outcome);
  return outcome == Outcome::kFailed ? Status(Code::kInternal, status.message()) : status;
}

/// x and out lie behind an alignment's worth of bytes that nobody may touch, as do those after them.
Status Trial::compute(GraphId graph, const std::vector<float>& x, BufferRange weights,
                      const Expected& expected) {
  const uint64_t edge = capabilities_.buffer_alignment;
  const uint64_t x_bytes = x.size() * sizeof(float);
  const uint64_t out_bytes = expected.out.size() * sizeof(float);
  GANGLION_ASSIGN_OR_RETURN(const BufferId in, create(edge + x_bytes));
  GANGLION_ASSIGN_OR_RETURN(const BufferId out, create(2 * edge + out_bytes));
  GANGLION_RETURN_IF_ERROR(fill(in, x.data(), x_bytes, edge).status());
  GANGLION_RETURN_IF_ERROR(fill(out, nullptr, 0, 0).status());
  GANGLION_RETURN_IF_ERROR(
      submit_and_wait({.graph = graph, .x = {in, edge}, .out = {out, edge}, .weights = weights}));
  GANGLION_ASSIGN_OR_RETURN(const std::span<uint8_t> view, backend_.begin_access(out, Access::kRead));
  std::vector<float> got(expected.out.size());
  std::memcpy(got.data(), view.data() + edge, out_bytes);
  bool touched = false;
  for (uint64_t i = 0; i < edge; ++i) touched |= (view[i] & view[edge + out_bytes + i]) != 0xFF;
  GANGLION_RETURN_IF_ERROR(backend_.end_access(out));
  worst_ = worst_error(got.data(), expected);
  if (touched) return Status(Code::kInternal, "writes outside of its output");
  if (worst_ <= 1) return base::ok_status();
  char times[32];
  std::snprintf(times, sizeof(times), "%.3g", worst_);
  return Status(Code::kInternal,
                std::string("differs from the reference by ") + times + " times what rounding explains");
}

Status Trial::run_ffn(const Operation& operation) {
  const FfnLayer layer = {
      .layer = options_.layer,
      .dim = dim(operation.format.gate, operation.format.up),
      .block_neurons = multiple(kLeastNeurons, capabilities_.row_multiple),
      .format = operation.format,
      .activation = operation.activation,
      .threshold = threshold_of(operation.activation),
  };
  const SampleBundles bundles = random_bundles(layer, kBlocks, 7, capabilities_.row_alignment);
  GANGLION_ASSIGN_OR_RETURN(const BufferId weights, create(bundles.bytes.size()));
  GANGLION_RETURN_IF_ERROR(fill(weights, bundles.bytes.data(), bundles.bytes.size(), 0).status());
  GANGLION_RETURN_IF_ERROR(backend_.define_layer(layer));
  layer_ = true;
  GANGLION_RETURN_IF_ERROR(add_blocks(backend_, bundles, weights));
  GANGLION_ASSIGN_OR_RETURN(const GraphId graph,
                            backend_.prepare(FfnShape{options_.layer, operation.bucket, kPrefix}));
  graphs_.push_back(graph);
  const std::vector<float> x = random_x(size_t{operation.bucket} * layer.dim);
  return compute(graph, x, {}, expected_ffn(bundles, x, tolerance_));
}

Status Trial::run_matmul(const Operation& operation) {
  const MatmulShape shape = {.type = operation.type,
                             .rows = multiple(kLeastRows, capabilities_.row_multiple),
                             .cols = dim(operation.type, operation.type),
                             .bucket = operation.bucket};
  std::vector<uint8_t> bytes(base::row_bytes(shape.type, shape.cols) * shape.rows);
  kernels::fill_random_blocks(shape.type, size_t{shape.rows} * shape.cols, &seed_, bytes.data());
  GANGLION_ASSIGN_OR_RETURN(const BufferId weights, create(bytes.size()));
  GANGLION_RETURN_IF_ERROR(fill(weights, bytes.data(), bytes.size(), 0).status());
  GANGLION_ASSIGN_OR_RETURN(const GraphId graph, backend_.prepare(shape));
  graphs_.push_back(graph);
  const std::vector<float> x = random_x(size_t{shape.bucket} * shape.cols);
  return compute(graph, x, {weights, 0}, expected_matmul(bytes, shape, x, tolerance_));
}

void Trial::clean_up() {
  for (const GraphId graph : graphs_) backend_.release(graph);
  if (layer_) backend_.remove_layer(options_.layer);
  for (const BufferId id : buffers_) backend_.destroy_buffer(id);
  graphs_.clear();
  buffers_.clear();
  layer_ = false;
}

Status Trial::run(const Operation& operation, SelfTestReport* report) {
  worst_ = 0;
  const Status status = operation.kind == Operation::Kind::kFfn ? run_ffn(operation) : run_matmul(operation);
  const std::string name = operation_name(operation);
  // What still runs uses what was created.
  if (status.code() != Code::kDevice) clean_up();
  if (status.code() == Code::kDevice || status.code() == Code::kResources) {
    return status.with_context("self-test of " + capabilities_.name + ": " + name);
  }
  ++report->tested;
  if (status.ok()) {
    report->worst = std::max(report->worst, worst_);
  } else {
    report->masked.push_back({operation, name + ": " + status.message()});
  }
  return base::ok_status();
}

}  // namespace

bool SelfTestReport::masks(const Operation& operation) const {
  return std::any_of(masked.begin(), masked.end(),
                     [&](const MaskedOperation& m) { return m.operation == operation; });
}

std::vector<Operation> operations_of(const Capabilities& capabilities) {
  std::vector<Operation> all;
  for (const FfnFormat& format : capabilities.ffn_formats) {
    for (const Activation activation : kActivations) {
      for (const uint32_t bucket : capabilities.ffn_buckets) {
        all.push_back(
            {.kind = Operation::Kind::kFfn, .activation = activation, .format = format, .bucket = bucket});
      }
    }
  }
  for (const TensorType type : capabilities.matmul_types) {
    for (const uint32_t bucket : capabilities.matmul_buckets) {
      all.push_back({.kind = Operation::Kind::kMatmul, .type = type, .bucket = bucket});
    }
  }
  return all;
}

Result<SelfTestReport> self_test(Backend& backend, const SelfTestOptions& options) {
  SelfTestReport report;
  Trial trial(backend, options);
  const std::vector<Operation> all =
      options.only.empty() ? operations_of(backend.capabilities()) : options.only;
  for (const Operation& operation : all) GANGLION_RETURN_IF_ERROR(trial.run(operation, &report));
  return report;
}

}  // namespace ganglion::accelerator

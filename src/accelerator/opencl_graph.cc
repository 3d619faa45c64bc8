#include "accelerator/opencl_graph.h"

#include <algorithm>

#include "accelerator/opencl_source.h"
#include "base/units.h"

namespace ganglion::accelerator {

using base::Code;
using base::Result;
using base::Status;

namespace {

using Sizes = OpenclSizes;

uint32_t divided_up(uint32_t a, uint32_t b) {
  return static_cast<uint32_t>(base::ceil_div(a, b));
}

std::string weights_macro(base::TensorType type) {
  return " -D WEIGHTS_" + std::string(base::tensor_type_info(type).name);
}

/// Sets arguments from number `at` on.
template <typename... Values>
Status set_arguments(const ClKernel& kernel, cl_uint at, const Values&... values) {
  cl_int error = CL_SUCCESS;
  const auto set = [&](const auto& value) {
    if (error == CL_SUCCESS) error = clSetKernelArg(kernel.get(), at++, sizeof(value), &value);
  };
  (set(values), ...);
  if (error == CL_SUCCESS) return base::ok_status();
  return Status(Code::kUnsupported,
                "opencl: kernel argument " + std::to_string(at - 1) + ": " + cl_error_text(error));
}

Result<ClMem> make_scratch(cl_context context, uint64_t bytes) {
  cl_int error = CL_SUCCESS;
  ClMem mem(clCreateBuffer(context, CL_MEM_READ_WRITE | CL_MEM_HOST_NO_ACCESS, bytes, nullptr, &error));
  if (error == CL_SUCCESS) return mem;
  return Status(Code::kResources,
                "opencl: scratch of " + std::to_string(bytes) + " bytes: " + cl_error_text(error));
}

/// What the kernels of an FFN's runs share.
struct Ffn {
  const FfnLayer& layer;
  uint32_t bucket;
  uint32_t neurons;  // Of all runs.
  cl_mem values;
  cl_mem partials;
};

Result<OpenclLaunch> hidden_launch(OpenclPrograms& programs, const Ffn& ffn, const OpenclRun& run,
                                   uint32_t first) {
  GANGLION_CHECK(ffn.layer.format.gate == ffn.layer.format.up && ffn.bucket <= Sizes::kLanes);
  OpenclLaunch launch;
  GANGLION_ASSIGN_OR_RETURN(
      launch.kernel, programs.kernel("ffn_hidden", "-D PART_HIDDEN -D BUCKET=" + std::to_string(ffn.bucket) +
                                                       weights_macro(ffn.layer.format.gate)));
  GANGLION_RETURN_IF_ERROR(
      set_arguments(launch.kernel, 2, run.gate.mem, cl_ulong{run.gate.offset}, cl_uint{run.gate.stride},
                    run.up.mem, cl_ulong{run.up.offset}, cl_uint{run.up.stride}, cl_uint{ffn.layer.dim},
                    static_cast<cl_int>(ffn.layer.activation), cl_float{ffn.layer.threshold}, ffn.values,
                    cl_uint{first}, cl_uint{ffn.neurons}));
  launch.global[0] = size_t{run.neurons} * Sizes::kLanes;
  launch.local[0] = Sizes::kLanes;
  launch.x_argument = 0;
  return launch;
}

Result<OpenclLaunch> down_launch(OpenclPrograms& programs, const Ffn& ffn, const OpenclRun& run,
                                 uint32_t first, uint32_t first_slice) {
  OpenclLaunch launch;
  const std::string_view type = kernels::down_type_names()[static_cast<size_t>(ffn.layer.format.down)];
  GANGLION_ASSIGN_OR_RETURN(
      launch.kernel, programs.kernel("ffn_down", "-D PART_DOWN -D BUCKET=" + std::to_string(ffn.bucket) +
                                                     " -D DOWN_" + std::string(type)));
  GANGLION_RETURN_IF_ERROR(set_arguments(launch.kernel, 0, run.down.mem, cl_ulong{run.down.offset},
                                         cl_uint{run.down.stride}, ffn.values, cl_uint{first},
                                         cl_uint{run.neurons}, cl_uint{ffn.neurons}, cl_uint{ffn.layer.dim},
                                         ffn.partials, cl_uint{first_slice}));
  launch.dimensions = 2;
  launch.local[0] = Sizes::kDownItems;
  launch.global[0] = size_t{divided_up(ffn.layer.dim / 8, Sizes::kDownItems)} * Sizes::kDownItems;
  launch.global[1] = divided_up(run.neurons, Sizes::kSlice);
  return launch;
}

Result<OpenclLaunch> sum_launch(OpenclPrograms& programs, const Ffn& ffn, uint32_t slices) {
  OpenclLaunch launch;
  const cl_uint count = ffn.bucket * ffn.layer.dim;
  GANGLION_ASSIGN_OR_RETURN(launch.kernel, programs.kernel("ffn_sum", "-D PART_SUM"));
  GANGLION_RETURN_IF_ERROR(set_arguments(launch.kernel, 2, ffn.partials, cl_uint{slices}, count));
  launch.global[0] = count;
  launch.local[0] = Sizes::kSumItems;
  launch.out_argument = 0;
  return launch;
}

cl_int set_place(const ClKernel& kernel, int argument, const OpenclPlace& place, uint64_t unit) {
  if (argument < 0) return CL_SUCCESS;
  const auto at = static_cast<cl_uint>(argument);
  const cl_ulong offset = place.offset / unit;
  const cl_int error = clSetKernelArg(kernel.get(), at, sizeof(place.mem), &place.mem);
  return error != CL_SUCCESS ? error : clSetKernelArg(kernel.get(), at + 1, sizeof(offset), &offset);
}

}  // namespace

Result<OpenclGraph> make_ffn_graph(OpenclPrograms& programs, cl_context context, const FfnLayer& layer,
                                   const std::vector<OpenclRun>& runs, uint32_t bucket) {
  OpenclGraph graph;
  graph.is_ffn = true;
  graph.layer = layer.layer;
  graph.x_bytes = graph.out_bytes = uint64_t{bucket} * layer.dim * sizeof(float);
  uint32_t neurons = 0, slices = 0;
  for (const OpenclRun& run : runs) {
    neurons += run.neurons;
    slices += divided_up(run.neurons, Sizes::kSlice);
  }
  GANGLION_ASSIGN_OR_RETURN(graph.values, make_scratch(context, uint64_t{bucket} * neurons * sizeof(float)));
  GANGLION_ASSIGN_OR_RETURN(graph.partials, make_scratch(context, slices * graph.out_bytes));
  const Ffn ffn = {.layer = layer,
                   .bucket = bucket,
                   .neurons = neurons,
                   .values = graph.values.get(),
                   .partials = graph.partials.get()};
  uint32_t first = 0, slice = 0;
  for (const OpenclRun& run : runs) {
    GANGLION_ASSIGN_OR_RETURN(OpenclLaunch hidden, hidden_launch(programs, ffn, run, first));
    GANGLION_ASSIGN_OR_RETURN(OpenclLaunch down, down_launch(programs, ffn, run, first, slice));
    graph.launches.push_back(std::move(hidden));
    graph.launches.push_back(std::move(down));
    first += run.neurons;
    slice += divided_up(run.neurons, Sizes::kSlice);
  }
  GANGLION_ASSIGN_OR_RETURN(OpenclLaunch sum, sum_launch(programs, ffn, slices));
  graph.launches.push_back(std::move(sum));
  return graph;
}

Result<OpenclGraph> make_matmul_graph(OpenclPrograms& programs, const MatmulShape& shape) {
  GANGLION_CHECK(shape.bucket % Sizes::kTileTokens == 0);
  OpenclGraph graph;
  const auto row_bytes = static_cast<cl_uint>(base::row_bytes(shape.type, shape.cols));
  graph.x_bytes = uint64_t{shape.bucket} * shape.cols * sizeof(float);
  graph.out_bytes = uint64_t{shape.bucket} * shape.rows * sizeof(float);
  graph.weight_bytes = uint64_t{row_bytes} * shape.rows;
  graph.tile_bytes = uint64_t{row_bytes} * std::min(shape.rows, Sizes::kTileRows);
  OpenclLaunch launch;
  GANGLION_ASSIGN_OR_RETURN(launch.kernel,
                            programs.kernel("matmul", "-D PART_MATMUL" + weights_macro(shape.type)));
  GANGLION_RETURN_IF_ERROR(
      set_arguments(launch.kernel, 6, row_bytes, cl_uint{shape.rows}, cl_uint{shape.cols}));
  launch.dimensions = 2;
  launch.local[0] = Sizes::kTileRows;
  launch.global[0] = size_t{divided_up(shape.rows, Sizes::kTileRows)} * Sizes::kTileRows;
  launch.global[1] = shape.bucket / Sizes::kTileTokens;
  launch.x_argument = 0;
  launch.out_argument = 2;
  launch.weights_argument = 4;
  graph.launches.push_back(std::move(launch));
  return graph;
}

cl_int start_graph(cl_command_queue queue, const OpenclGraph& graph, const OpenclPlaces& places,
                   cl_event gate, bool one_group, cl_event* done) {
  for (size_t i = 0; i < graph.launches.size(); ++i) {
    const OpenclLaunch& launch = graph.launches[i];
    cl_int error = set_place(launch.kernel, launch.x_argument, places.x, sizeof(float));
    if (error == CL_SUCCESS) error = set_place(launch.kernel, launch.out_argument, places.out, sizeof(float));
    if (error == CL_SUCCESS) error = set_place(launch.kernel, launch.weights_argument, places.weights, 1);
    if (error != CL_SUCCESS) return error;
    const bool waits = i == 0 && gate != nullptr;
    const bool last = i + 1 == graph.launches.size();
    error = clEnqueueNDRangeKernel(queue, launch.kernel.get(), launch.dimensions, nullptr,
                                   one_group ? launch.local : launch.global, launch.local, waits ? 1 : 0,
                                   waits ? &gate : nullptr, last ? done : nullptr);
    if (error != CL_SUCCESS) return error;
  }
  return clFlush(queue);
}

}  // namespace ganglion::accelerator

// Graphs of OpenCL: kernels with all arguments set but those that come with a submission.
#pragma once

#include <cstdint>
#include <vector>

#include "accelerator/backend.h"
#include "accelerator/opencl_api.h"
#include "accelerator/opencl_programs.h"

namespace ganglion::accelerator {

/// Blocks that follow each other in memory, computed by one kernel.
struct OpenclRun {
  struct Part {
    cl_mem mem = nullptr;
    uint64_t offset = 0;
    uint32_t stride = 0;
  };
  Part gate;
  Part up;
  Part down;
  uint32_t neurons = 0;
};

/// One kernel's start. Arguments that come with a submission are a buffer and, next, an offset: in floats of
/// x and out, in bytes of weights.
struct OpenclLaunch {
  ClKernel kernel;
  cl_uint dimensions = 1;
  size_t global[2] = {1, 1};
  size_t local[2] = {1, 1};
  int x_argument = -1;
  int out_argument = -1;
  int weights_argument = -1;
};

/// A place that a submission names.
struct OpenclPlace {
  cl_mem mem = nullptr;
  uint64_t offset = 0;  ///< Bytes.
};
struct OpenclPlaces {
  OpenclPlace x;
  OpenclPlace out;
  OpenclPlace weights;
};

struct OpenclGraph {
  std::vector<OpenclLaunch> launches;  ///< In order; each sees what those before wrote.
  ClMem values;                        ///< [bucket][neurons]
  ClMem partials;                      ///< [slices][bucket][D]
  bool is_ffn = false;
  uint32_t layer = 0;  ///< Of FFN.
  uint64_t x_bytes = 0;
  uint64_t out_bytes = 0;
  uint64_t weight_bytes = 0;  ///< Of MatMul.
  uint64_t tile_bytes = 0;    ///< Of its first tile of rows.
  uint32_t pending = 0;
};

/// Errors: kUnsupported (kernels do not compile), kResources (scratch), kDevice.
base::Result<OpenclGraph> make_ffn_graph(OpenclPrograms& programs, cl_context context, const FfnLayer& layer,
                                         const std::vector<OpenclRun>& runs, uint32_t bucket);
base::Result<OpenclGraph> make_matmul_graph(OpenclPrograms& programs, const MatmulShape& shape);

/// Sets the arguments and starts all kernels, the first of them after `gate` (may be null); `done` is the
/// event of the last. `one_group`: a single work-group of each, so that drivers that compile at the first
/// start have done it.
cl_int start_graph(cl_command_queue queue, const OpenclGraph& graph, const OpenclPlaces& places,
                   cl_event gate, bool one_group, cl_event* done);

}  // namespace ganglion::accelerator

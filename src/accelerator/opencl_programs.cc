#include "accelerator/opencl_programs.h"

#include "accelerator/backend.h"
#include "accelerator/opencl_source.h"

namespace ganglion::accelerator {

using base::Code;
using base::Result;
using base::Status;

namespace {

std::string define(const char* name, unsigned value) {
  return std::string(" -D ") + name + "=" + std::to_string(value);
}

std::string common_macros() {
  return "-cl-std=CL1.2" + define("LANES", OpenclSizes::kLanes) + define("SLICE", OpenclSizes::kSlice) +
         define("DOWN_ITEMS", OpenclSizes::kDownItems) + define("SUM_ITEMS", OpenclSizes::kSumItems) +
         define("TILE_ROWS", OpenclSizes::kTileRows) + define("TILE_TOKENS", OpenclSizes::kTileTokens) +
         define("ACTIVATION_DRELU", static_cast<unsigned>(Activation::kDRelu)) +
         define("ACTIVATION_SILU", static_cast<unsigned>(Activation::kSilu)) + " ";
}

/// The first line of the compiler's log that names an error, else the first.
std::string first_error(cl_program program, cl_device_id device) {
  size_t bytes = 0;
  if (clGetProgramBuildInfo(program, device, CL_PROGRAM_BUILD_LOG, 0, nullptr, &bytes) != CL_SUCCESS)
    return {};
  std::string log(bytes, '\0');
  clGetProgramBuildInfo(program, device, CL_PROGRAM_BUILD_LOG, bytes, log.data(), nullptr);
  const size_t error = log.find("error");
  const size_t begin = error == std::string::npos ? 0 : log.rfind('\n', error) + 1;
  return log.substr(begin, log.find_first_of(std::string("\n\0", 2), begin) - begin);
}

}  // namespace

Result<cl_program> OpenclPrograms::program(const std::string& macros) {
  const std::lock_guard lock(mutex_);
  const auto known = programs_.find(macros);
  if (known != programs_.end()) return known->second.get();
  const char* source = opencl_source();
  cl_int error = CL_SUCCESS;
  ClProgram made(clCreateProgramWithSource(context_, 1, &source, nullptr, &error));
  if (error != CL_SUCCESS) return Status(Code::kDevice, "opencl: no program: " + cl_error_text(error));
  error = clBuildProgram(made.get(), 1, &device_, (common_macros() + macros).c_str(), nullptr, nullptr);
  if (error != CL_SUCCESS) {
    return Status(Code::kUnsupported, "opencl: " + macros + ": " + cl_error_text(error) + ": " +
                                          first_error(made.get(), device_));
  }
  const cl_program program = made.get();
  programs_.emplace(macros, std::move(made));
  return program;
}

Result<ClKernel> OpenclPrograms::kernel(const char* name, const std::string& macros) {
  GANGLION_ASSIGN_OR_RETURN(const cl_program of, program(macros));
  cl_int error = CL_SUCCESS;
  ClKernel kernel(clCreateKernel(of, name, &error));
  if (error != CL_SUCCESS) {
    return Status(Code::kUnsupported, std::string("opencl: kernel ") + name + ": " + cl_error_text(error));
  }
  return kernel;
}

}  // namespace ganglion::accelerator

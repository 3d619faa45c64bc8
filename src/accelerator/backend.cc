#include "accelerator/backend.h"

namespace ganglion::accelerator {

using base::Code;
using base::Status;

std::string_view activation_name(Activation activation) {
  switch (activation) {
    case Activation::kRelu:
      return "relu";
    case Activation::kDRelu:
      return "drelu";
    case Activation::kSilu:
      return "silu";
  }
  return "unknown";
}

std::vector<FfnFormat> uniform_formats(std::span<const base::TensorType> types) {
  std::vector<FfnFormat> formats;
  for (const base::TensorType type : types) {
    for (size_t down = 0; down < kernels::kDownTypes; ++down)
      formats.push_back({type, type, static_cast<kernels::DownType>(down)});
  }
  return formats;
}

uint32_t bucket_for(std::span<const uint32_t> buckets, size_t tokens) {
  for (const uint32_t bucket : buckets) {
    if (bucket >= tokens) return bucket;
  }
  return 0;
}

std::string operation_name(const Operation& operation) {
  const auto type = [](base::TensorType t) { return std::string(base::tensor_type_info(t).name); };
  std::string name = "matmul " + type(operation.type);
  if (operation.kind == Operation::Kind::kFfn) {
    const FfnFormat& format = operation.format;
    name = "ffn " + std::string(activation_name(operation.activation)) + " " + type(format.gate) + " " +
           type(format.up) + " " + std::string(kernels::down_type_names()[static_cast<size_t>(format.down)]);
  }
  return name + ", " + std::to_string(operation.bucket) + " tokens";
}

Status to_status(Outcome outcome) {
  switch (outcome) {
    case Outcome::kDone:
      break;
    case Outcome::kPending:
      return Status(Code::kDevice, "the accelerator did not finish in time");
    case Outcome::kFailed:
      return Status(Code::kDevice, "the accelerator failed to compute");
    case Outcome::kDeviceLost:
      return Status(Code::kDevice, "the accelerator is lost");
  }
  return base::ok_status();
}

}  // namespace ganglion::accelerator

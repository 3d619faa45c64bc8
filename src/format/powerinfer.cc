#include "format/powerinfer.h"

#include <algorithm>

namespace ganglion::format {

using base::Code;
using base::Result;
using base::Status;
using base::TensorType;

namespace {

constexpr std::string_view kDown = ".ffn_down.";
constexpr std::string_view kTransposed = ".ffn_down_t.";
constexpr const char* kActivationKey = "ganglion.ffn.activation";
constexpr uint64_t kUnusedPositions = 2;

std::string replaced(const std::string& name, std::string_view from, std::string_view to) {
  const size_t at = name.find(from);
  return at == std::string::npos ? name
                                 : name.substr(0, at) + std::string(to) + name.substr(at + from.size());
}

// A down matrix or its bias under its plain name.
Status rename_down(const GgufModel& source, TensorInfo* tensor) {
  const std::string name = replaced(tensor->name, kTransposed, kDown);
  if (name == tensor->name) return base::ok_status();
  if (source.find_tensor(name) != nullptr)
    return Status(Code::kModelFile, "'" + name + "' and '" + tensor->name + "' are both there");
  const bool matrix = name.ends_with(".weight");
  if (matrix && tensor->dim_count != 2)
    return Status(Code::kModelFile, "tensor '" + tensor->name + "' " + tensor->shape() + " is no matrix");
  tensor->name = name;
  if (!matrix) return base::ok_status();
  std::swap(tensor->dims[0], tensor->dims[1]);
  tensor->type = plain_down_type(tensor->type);
  tensor->bytes = base::row_bytes(tensor->type, tensor->dims[0]) * tensor->dims[1];
  return base::ok_status();
}

Status drop_unused_positions(TensorInfo* positions, base::Metadata* metadata) {
  if (positions->dim_count != 2 || positions->dims[1] <= kUnusedPositions) {
    return Status(Code::kModelFile, "tensor '" + positions->name + "' " + positions->shape() +
                                        " is no table of positions with two unused ones");
  }
  const uint64_t unused = kUnusedPositions * base::row_bytes(positions->type, positions->dims[0]);
  positions->dims[1] -= kUnusedPositions;
  positions->offset += unused;
  positions->bytes -= unused;
  base::Value context;
  context.uint_value = positions->dims[1];
  metadata->set("opt.context_length", std::move(context));
  return base::ok_status();
}

}  // namespace

TensorType plain_down_type(TensorType transposed) {
  return base::tensor_type_info(transposed).block_elems == 1 ? transposed : TensorType::kF16;
}

Result<GgufModel> plain_header(const GgufModel& source) {
  base::Metadata metadata = source.metadata();
  GANGLION_ASSIGN_OR_RETURN(const std::string architecture, metadata.string_required("general.architecture"));
  const bool opt = architecture == "opt";
  if (architecture != "llama" && architecture != "bamboo" && !opt) {
    return Status(Code::kUnsupported, "PowerInfer models of architecture '" + architecture.substr(0, 40) +
                                          "' are not supported - known: llama, bamboo, opt");
  }
  // The families of the others know what they are.
  if (architecture == "llama" && !metadata.has(kActivationKey)) {
    base::Value relu;
    relu.kind = base::ValueKind::kString;
    relu.text = "relu";
    metadata.set(kActivationKey, std::move(relu));
  }
  std::vector<TensorInfo> tensors;
  for (TensorInfo tensor : source.tensors()) {
    GANGLION_RETURN_IF_ERROR(rename_down(source, &tensor));
    if (opt && (tensor.name.ends_with(".fc1.weight") || tensor.name.ends_with(".fc2.weight"))) continue;
    if (opt && tensor.name == "position_embd.weight")
      GANGLION_RETURN_IF_ERROR(drop_unused_positions(&tensor, &metadata));
    tensors.push_back(std::move(tensor));
  }
  return source.with_header(std::move(metadata), std::move(tensors));
}

const TensorInfo* transposed_source(const GgufModel& source, const TensorInfo& plain) {
  const std::string name = replaced(plain.name, kDown, kTransposed);
  return name != plain.name && name.ends_with(".weight") ? source.find_tensor(name) : nullptr;
}

Status refuse_powerinfer(const GgufModel& model, const std::string& path) {
  if (!model.powerinfer()) return base::ok_status();
  return Status(Code::kUnsupported,
                "'" + path + "' is a PowerInfer model, whose down matrices lie transposed - run what " +
                    "`ganglion pack -m " + path + " -o PACK.gguf` makes of it");
}

}  // namespace ganglion::format

#include "format/powerinfer.h"

#include <algorithm>

namespace ganglion::format {

using base::Code;
using base::Result;
using base::Status;
using base::TensorType;

namespace {

constexpr std::string_view kTransposed = ".ffn_down_t.weight";
constexpr std::string_view kPlain = ".ffn_down.weight";
constexpr const char* kActivationKey = "ganglion.ffn.activation";

}  // namespace

TensorType plain_down_type(TensorType transposed) {
  return base::tensor_type_info(transposed).block_elems == 1 ? transposed : TensorType::kF16;
}

Result<GgufModel> plain_header(const GgufModel& source) {
  base::Metadata metadata = source.metadata();
  GANGLION_ASSIGN_OR_RETURN(const std::string architecture, metadata.string_required("general.architecture"));
  if (architecture != "llama" && architecture != "bamboo") {
    return Status(Code::kUnsupported, "PowerInfer models of architecture '" + architecture.substr(0, 40) +
                                          "' are not supported - known: llama, bamboo");
  }
  // Bamboo's own family knows that both gate and up are rectified.
  if (architecture == "llama" && !metadata.has(kActivationKey)) {
    base::Value relu;
    relu.kind = base::ValueKind::kString;
    relu.text = "relu";
    metadata.set(kActivationKey, std::move(relu));
  }
  std::vector<TensorInfo> tensors = source.tensors();
  for (TensorInfo& tensor : tensors) {
    const size_t at = tensor.name.size() - std::min(tensor.name.size(), kTransposed.size());
    if (tensor.name.compare(at, std::string::npos, kTransposed) != 0) continue;
    const std::string name = tensor.name.substr(0, at) + std::string(kPlain);
    if (tensor.dim_count != 2 || source.find_tensor(name) != nullptr) {
      return Status(Code::kModelFile, tensor.dim_count != 2
                                          ? "tensor '" + tensor.name + "' " + tensor.shape() + " is no matrix"
                                          : "'" + name + "' and '" + tensor.name + "' are both there");
    }
    tensor.name = name;
    std::swap(tensor.dims[0], tensor.dims[1]);
    tensor.type = plain_down_type(tensor.type);
    tensor.bytes = base::row_bytes(tensor.type, tensor.dims[0]) * tensor.dims[1];
  }
  return source.with_header(std::move(metadata), std::move(tensors));
}

Status refuse_powerinfer(const GgufModel& model, const std::string& path) {
  if (!model.powerinfer()) return base::ok_status();
  return Status(Code::kUnsupported,
                "'" + path + "' is a PowerInfer model, whose down matrices lie transposed - run what " +
                    "`ganglion pack -m " + path + " -o PACK.gguf` makes of it");
}

}  // namespace ganglion::format

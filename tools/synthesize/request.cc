#include "request.h"

#include "base/units.h"
#include "quantize.h"

namespace ganglion::synthesize {

using base::Code;
using base::format;
using base::Status;

namespace {

// Below and above, no skew puts 80 % of the activations into 30 % of the neurons and leaves room for chance.
constexpr double kLeastActive = 0.01;
constexpr double kMostActive = 0.24;

Status refuse(const std::string& message) {
  return Status(Code::kInvalidArgument, message);
}

Status check_shape(const Shape& s) {
  if (s.layers == 0 || s.dim == 0 || s.ffn == 0 || s.heads == 0 || s.kv_heads == 0 || s.head_dims == 0)
    return refuse("layers, dim, ffn, heads, kv-heads and head-dims must be at least 1");
  if (s.heads % s.kv_heads != 0)
    return refuse(format("%u heads are not a multiple of %u kv-heads", s.heads, s.kv_heads));
  if (s.head_dims % 2 != 0) return refuse(format("head-dims is %u, expected an even number", s.head_dims));
  if (s.vocab < 260) return refuse(format("vocab is %u, expected at least 260 (the bytes)", s.vocab));
  if (s.experts > 0 && (s.experts_used == 0 || s.experts_used > s.experts))
    return refuse(format("experts-used is %u, expected 1 to %u", s.experts_used, s.experts));
  if (s.experts == 0 && s.experts_used > 0) return refuse("experts-used needs --experts");
  if (s.experts == 0 && s.architecture != "llama") return refuse("this shape needs experts");
  return base::ok_status();
}

Status check_rows(const Request& request) {
  const Shape& s = request.shape;
  const uint32_t block = request.type == "Q4_K_M" ? 256 : find_type(request.type)->block_elems;
  for (const auto& [name, row] : {std::pair<const char*, uint32_t>{"dim", s.dim},
                                  {"ffn", s.ffn},
                                  {"heads * head-dims", s.heads * s.head_dims}}) {
    if (row % block != 0)
      return refuse(
          format("%s is %u, expected a multiple of %u for %s", name, row, block, request.type.c_str()));
  }
  return base::ok_status();
}

}  // namespace

const std::map<std::string, Shape>& known_shapes() {
  static const std::map<std::string, Shape> shapes = {
      {"7b", {}},
      {"mixtral-8x7b", {.experts = 8, .experts_used = 2}},
      {"qwen3-30b-a3b",
       {.architecture = "qwen3moe",
        .layers = 48,
        .dim = 2048,
        .ffn = 768,
        .heads = 32,
        .kv_heads = 4,
        .vocab = 151936,
        .experts = 128,
        .experts_used = 8}},
      {"smallthinker-4b",
       {.architecture = "smallthinker",
        .layers = 32,
        .dim = 1536,
        .ffn = 768,
        .heads = 12,
        .kv_heads = 2,
        .vocab = 151936,
        .experts = 32,
        .experts_used = 4}},
      {"smallthinker-21b",
       {.architecture = "smallthinker",
        .layers = 52,
        .dim = 2560,
        .ffn = 768,
        .heads = 28,
        .kv_heads = 4,
        .vocab = 151936,
        .experts = 64,
        .experts_used = 6}},
      {"tiny",
       {.layers = 4,
        .dim = 256,
        .ffn = 768,
        .heads = 4,
        .kv_heads = 2,
        .head_dims = 64,
        .vocab = 512,
        .context = 2048}},
  };
  return shapes;
}

const base::TensorTypeInfo* find_type(const std::string& name) {
  for (const base::TensorTypeInfo& info : base::all_tensor_types()) {
    if (info.name == name && info.computable) return &info;
  }
  return nullptr;
}

Status check_request(const Request& request) {
  if (request.type != "Q4_K_M" && find_type(request.type) == nullptr)
    return refuse("type '" + request.type + "' is not known - use Q4_0, Q8_0, F16, F32, Q4_K_M or another");
  if (request.activation != "silu" && request.activation != "relu" && request.activation != "drelu")
    return refuse("activation is '" + request.activation + "', expected silu, relu or drelu");
  if (request.shape.architecture == "smallthinker" && request.activation != "relu")
    return refuse("the experts of this shape are rectified: use --activation relu");
  GANGLION_RETURN_IF_ERROR(check_shape(request.shape));
  GANGLION_RETURN_IF_ERROR(check_rows(request));
  if (!request.planted()) {
    return request.active == 0 ? base::ok_status() : refuse("--active needs --activation relu or drelu");
  }
  const base::TensorTypeInfo* type = find_type(request.type);
  if (type == nullptr || !can_encode(type->type))
    return refuse("planted weights cannot be written as " + request.type + " - use Q4_0, Q8_0, F16 or F32");
  const double active = request.active_share();
  if (active < kLeastActive || active > kMostActive)
    return refuse(format("--active is %g, expected %g to %g", active, kLeastActive, kMostActive));
  const Shape& s = request.shape;
  if (s.dim < 64 || s.ffn < 64) return refuse("planted sparsity needs dim and ffn of at least 64");
  return base::ok_status();
}

}  // namespace ganglion::synthesize

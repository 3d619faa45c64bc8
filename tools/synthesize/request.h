// What the command line asks for: a model's shape, type and activation, checked before anything is written.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "base/status.h"
#include "base/tensor_type.h"

namespace ganglion::synthesize {

struct Shape {
  std::string architecture = "llama";
  uint32_t layers = 32;
  uint32_t dim = 4096;
  uint32_t ffn = 14336;
  uint32_t heads = 32;
  uint32_t kv_heads = 8;
  uint32_t head_dims = 128;
  uint32_t vocab = 32000;
  uint32_t context = 32768;
  uint32_t experts = 0;
  uint32_t experts_used = 0;

  uint32_t slices() const { return experts > 0 ? experts : 1; }
};

struct Request {
  Shape shape;
  std::string type = "Q4_0";
  std::string activation = "silu";  ///< silu: random weights; relu, drelu: planted sparsity.
  double active = 0;                ///< Mean share of active neurons; 0: 10 %, with experts 15 %.
  std::string output;
  uint64_t seed = 1;
  int threads = 0;  ///< 0: all cores. The file does not depend on it.

  bool planted() const { return activation != "silu"; }
  double active_share() const { return active > 0 ? active : shape.experts > 0 ? 0.15 : 0.10; }
};

/// Shapes by name.
const std::map<std::string, Shape>& known_shapes();

/// Null for a name of no computable type.
const base::TensorTypeInfo* find_type(const std::string& name);

/// Errors: kInvalidArgument, one line that says what to ask for instead.
base::Status check_request(const Request& request);

}  // namespace ganglion::synthesize

// Writes bench models: any llama, mixtral or qwen3moe shape in any type, seeded, streamed to disk. The
// weights are random: speed does not depend on them, text does. Loadable by any GGUF engine.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/units.h"
#include "format/gguf_writer.h"
#include "kernels/random_blocks.h"

namespace ganglion {
namespace {

using base::TensorType;
using format::GgufWriter;

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
};

const std::map<std::string, Shape> kShapes = {
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

struct Request {
  Shape shape;
  std::string type = "Q4_0";
  std::string output;
  uint64_t seed = 1;
};

const base::TensorTypeInfo* find_type(const std::string& name) {
  for (const base::TensorTypeInfo& info : base::all_tensor_types()) {
    if (info.name == name && info.computable) return &info;
  }
  return nullptr;
}

// The type of a matrix; "Q4_K_M" mixes as quantisers do: more bits where errors cost most.
TensorType matrix_type(const Request& request, const std::string& name, uint32_t layer) {
  if (request.type != "Q4_K_M") return find_type(request.type)->type;
  if (name == "output.weight") return TensorType::kQ6_K;
  const uint32_t n = request.shape.layers;
  const bool more_bits = layer < n / 8 || layer >= 7 * n / 8 || (layer - n / 8) % 3 == 2;
  const bool costly = name.find("attn_v") != std::string::npos || name.find("ffn_down") != std::string::npos;
  return costly && more_bits ? TensorType::kQ6_K : TensorType::kQ4_K;
}

/// Declares and later fills the tensors of a request, in one order.
class Synthesizer {
 public:
  explicit Synthesizer(const Request& request)
      : request_(request), writer_(request.output), random_(request.seed * 2 + 1) {}

  Status run() {
    add_metadata();
    declare_all();
    std::fprintf(stderr, "writing %s\n", base::format_bytes(writer_.data_bytes()).c_str());
    GANGLION_RETURN_IF_ERROR(writer_.begin_data());
    for (const Declared& tensor : declared_) GANGLION_RETURN_IF_ERROR(fill(tensor));
    return writer_.finish();
  }

 private:
  struct Declared {
    TensorType type;
    uint64_t row;
    uint64_t rows;
    bool is_norm;
  };

  void add_metadata() {
    const Shape& s = request_.shape;
    const std::string a = s.architecture + ".";
    writer_.add_string("general.architecture", s.architecture);
    writer_.add_string("general.name",
                       "synthetic " + request_.type + ", seed " + std::to_string(request_.seed));
    writer_.add_uint(a + "block_count", s.layers);
    writer_.add_uint(a + "context_length", s.context);
    writer_.add_uint(a + "embedding_length", s.dim);
    writer_.add_uint(a + "feed_forward_length", s.ffn);
    writer_.add_uint(a + "attention.head_count", s.heads);
    writer_.add_uint(a + "attention.head_count_kv", s.kv_heads);
    writer_.add_uint(a + "attention.key_length", s.head_dims);
    writer_.add_uint(a + "attention.value_length", s.head_dims);
    writer_.add_uint(a + "rope.dimension_count", s.head_dims);
    writer_.add_float(a + "rope.freq_base", 1e6F);
    writer_.add_float(a + "attention.layer_norm_rms_epsilon", 1e-5F);
    writer_.add_uint(a + "vocab_size", s.vocab);
    if (s.experts > 0) {
      writer_.add_uint(a + "expert_count", s.experts);
      writer_.add_uint(a + "expert_used_count", s.experts_used);
      if (s.architecture == "qwen3moe") writer_.add_uint(a + "expert_feed_forward_length", s.ffn);
    }
    add_vocabulary();
  }

  // A SentencePiece-style vocabulary with bytes, so that any text has ids.
  void add_vocabulary() {
    std::vector<std::string> tokens = {"<unk>", "<s>", "</s>"};
    std::vector<int32_t> kinds = {2, 3, 3};
    for (int byte = 0; byte < 256; ++byte) {
      tokens.push_back(base::format("<0x%02X>", static_cast<unsigned>(byte)));
      kinds.push_back(6);
    }
    while (tokens.size() < request_.shape.vocab) {
      tokens.push_back("t" + std::to_string(tokens.size()));
      kinds.push_back(1);
    }
    std::vector<float> scores;
    for (size_t i = 0; i < tokens.size(); ++i) scores.push_back(-static_cast<float>(i));
    writer_.add_string("tokenizer.ggml.model", "llama");
    writer_.add_strings("tokenizer.ggml.tokens", tokens);
    writer_.add_floats("tokenizer.ggml.scores", scores);
    writer_.add_ints("tokenizer.ggml.token_type", kinds);
    writer_.add_uint("tokenizer.ggml.bos_token_id", 1);
    writer_.add_uint("tokenizer.ggml.eos_token_id", 2);
    writer_.add_uint("tokenizer.ggml.unknown_token_id", 0);
  }

  void matrix(const std::string& name, uint32_t layer, uint64_t row, uint64_t rows, uint64_t slices = 1) {
    const bool router = name.find("ffn_gate_inp") != std::string::npos;
    const TensorType type = router ? TensorType::kF32 : matrix_type(request_, name, layer);
    std::vector<uint64_t> dims = {row, rows};
    if (slices > 1) dims.push_back(slices);
    writer_.add_tensor(name, type, dims);
    declared_.push_back({type, row, rows * slices, false});
  }

  void norm(const std::string& name, uint64_t size) {
    writer_.add_tensor(name, TensorType::kF32, {size});
    declared_.push_back({TensorType::kF32, size, 1, true});
  }

  void declare_all() {
    const Shape& s = request_.shape;
    matrix("token_embd.weight", 0, s.dim, s.vocab);
    for (uint32_t i = 0; i < s.layers; ++i) {
      const std::string p = "blk." + std::to_string(i) + ".";
      norm(p + "attn_norm.weight", s.dim);
      matrix(p + "attn_q.weight", i, s.dim, uint64_t{s.heads} * s.head_dims);
      matrix(p + "attn_k.weight", i, s.dim, uint64_t{s.kv_heads} * s.head_dims);
      matrix(p + "attn_v.weight", i, s.dim, uint64_t{s.kv_heads} * s.head_dims);
      if (s.architecture == "qwen3moe") {
        norm(p + "attn_q_norm.weight", s.head_dims);
        norm(p + "attn_k_norm.weight", s.head_dims);
      }
      matrix(p + "attn_output.weight", i, uint64_t{s.heads} * s.head_dims, s.dim);
      norm(p + "ffn_norm.weight", s.dim);
      if (s.experts > 0) matrix(p + "ffn_gate_inp.weight", i, s.dim, s.experts);
      const std::string suffix = s.experts > 0 ? "_exps.weight" : ".weight";
      const uint64_t slices = s.experts > 0 ? s.experts : 1;
      matrix(p + "ffn_gate" + suffix, i, s.dim, s.ffn, slices);
      matrix(p + "ffn_up" + suffix, i, s.dim, s.ffn, slices);
      matrix(p + "ffn_down" + suffix, i, s.ffn, s.dim, slices);
    }
    norm("output_norm.weight", s.dim);
    matrix("output.weight", s.layers - 1, s.dim, s.vocab);
  }

  Status fill(const Declared& tensor) {
    const uint64_t row_bytes = base::row_bytes(tensor.type, tensor.row);
    const uint64_t rows_at_once = std::max<uint64_t>(1, base::kMiB / row_bytes);
    std::vector<uint8_t> bytes;
    for (uint64_t row = 0; row < tensor.rows; row += rows_at_once) {
      const uint64_t rows = std::min(rows_at_once, tensor.rows - row);
      bytes.resize(rows * row_bytes);
      if (tensor.type == TensorType::kF32) {
        auto* values = reinterpret_cast<float*>(bytes.data());
        const size_t count = rows * tensor.row;
        kernels::fill_random_floats(count, &random_, values);
        for (size_t i = 0; i < count; ++i)
          values[i] = tensor.is_norm ? 1 + 0.05F * values[i] : 0.05F * values[i];
      } else {
        kernels::fill_random_blocks(tensor.type, rows * tensor.row, &random_, bytes.data());
      }
      GANGLION_RETURN_IF_ERROR(writer_.write(bytes));
    }
    return ok_status();
  }

  const Request& request_;
  GgufWriter writer_;
  uint64_t random_;
  std::vector<Declared> declared_;
};

int run(int argc, char** argv) {
  CLI::App app("Writes a bench model with random weights.", "synthesize");
  std::string shape_name = "7b";
  std::string names;
  for (const auto& [name, shape] : kShapes) names += (names.empty() ? "" : ", ") + name;
  Request request;
  app.add_option("--shape", shape_name, "Start from: " + names)->capture_default_str();
  std::map<std::string, uint32_t> changes;
  for (const char* name : {"layers", "dim", "ffn", "heads", "kv-heads", "head-dims", "vocab", "context",
                           "experts", "experts-used"}) {
    app.add_option_function<uint32_t>(
        std::string("--") + name, [&changes, name](uint32_t value) { changes[name] = value; },
        "Overrides the shape");
  }
  app.add_option("--type", request.type, "Type of all matrices, or Q4_K_M")->capture_default_str();
  app.add_option("--seed", request.seed, "Seed")->capture_default_str();
  app.add_option("-o,--output", request.output, "File to write")->required();
  CLI11_PARSE(app, argc, argv);
  if (kShapes.count(shape_name) == 0 || (request.type != "Q4_K_M" && find_type(request.type) == nullptr)) {
    std::fprintf(stderr, "synthesize: unknown shape or type; shapes: %s\n", names.c_str());
    return 2;
  }
  request.shape = kShapes.at(shape_name);
  Shape& s = request.shape;
  const std::map<std::string, uint32_t*> fields = {
      {"layers", &s.layers},     {"dim", &s.dim},
      {"ffn", &s.ffn},           {"heads", &s.heads},
      {"kv-heads", &s.kv_heads}, {"head-dims", &s.head_dims},
      {"vocab", &s.vocab},       {"context", &s.context},
      {"experts", &s.experts},   {"experts-used", &s.experts_used}};
  for (const auto& [name, value] : changes) *fields.at(name) = value;
  const Status status = Synthesizer(request).run();
  if (status.ok()) return 0;
  std::fprintf(stderr, "synthesize: %s\n", status.message().c_str());
  return exit_code(status.code());
}

}  // namespace
}  // namespace ganglion

int main(int argc, char** argv) {
  return ganglion::run(argc, argv);
}

#include "synthesizer.h"

#include <algorithm>
#include <cstring>

#include "base/units.h"
#include "kernels/random_blocks.h"
#include "platform/cpu.h"

namespace ganglion::synthesize {

using base::Status;
using base::TensorType;

namespace {

constexpr uint64_t kBytesAtOnce = 4 * base::kMiB;

// The type of a matrix; "Q4_K_M" mixes as quantisers do: more bits where errors cost most.
TensorType matrix_type(const Request& request, Role role, uint32_t layer) {
  if (role == Role::kRouter) return TensorType::kF32;
  if (request.type != "Q4_K_M") return find_type(request.type)->type;
  if (role == Role::kHead) return TensorType::kQ6_K;
  const uint32_t n = request.shape.layers;
  const bool more_bits = layer < n / 8 || layer >= 7 * n / 8 || (layer - n / 8) % 3 == 2;
  const bool costly = role == Role::kValue || role == Role::kDown;
  return costly && more_bits ? TensorType::kQ6_K : TensorType::kQ4_K;
}

}  // namespace

Synthesizer::Synthesizer(const Request& request)
    : request_(request), writer_(request.output), random_(request.seed * 2 + 1) {
  if (request.planted()) {
    const int threads = request.threads > 0 ? request.threads : platform::default_thread_count();
    threads_ = std::make_unique<platform::ThreadPool>(threads);
    planted_ = std::make_unique<PlantedRows>(request_, *threads_);
  }
  add_metadata();
  declare_all();
}

Synthesizer::~Synthesizer() = default;

Status Synthesizer::run() {
  GANGLION_RETURN_IF_ERROR(writer_.begin_data());
  for (size_t i = 0; i < declared_.size(); ++i) {
    GANGLION_RETURN_IF_ERROR(planted_ ? fill_planted(declared_[i], i) : fill_random(declared_[i]));
  }
  return writer_.finish();
}

void Synthesizer::add_metadata() {
  const Shape& s = request_.shape;
  const std::string a = s.architecture + ".";
  std::string name = "synthetic " + request_.type;
  if (request_.planted()) {
    name += base::format(", planted sparsity, %s, %g %% active", request_.activation.c_str(),
                         100 * request_.active_share());
    writer_.add_string("ganglion.ffn.activation", request_.activation);
  }
  writer_.add_string("general.architecture", s.architecture);
  writer_.add_string("general.name", name + ", seed " + std::to_string(request_.seed));
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
    if (s.architecture != "llama") writer_.add_uint(a + "expert_feed_forward_length", s.ffn);
  }
  add_vocabulary();
}

// A SentencePiece-style vocabulary with bytes, so that any text has ids.
void Synthesizer::add_vocabulary() {
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

void Synthesizer::matrix(Role role, const std::string& name, uint32_t layer, uint64_t row, uint64_t rows,
                         uint64_t slices) {
  const TensorType type = matrix_type(request_, role, layer);
  std::vector<uint64_t> dims = {row, rows};
  if (slices > 1) dims.push_back(slices);
  writer_.add_tensor(name, type, dims);
  declared_.push_back(
      {.role = role, .layer = layer, .type = type, .row = row, .rows = rows, .slices = slices});
}

void Synthesizer::norm(const std::string& name, uint64_t size) {
  writer_.add_tensor(name, TensorType::kF32, {size});
  declared_.push_back({.role = Role::kNorm, .row = size, .rows = 1});
}

void Synthesizer::declare_all() {
  const Shape& s = request_.shape;
  matrix(Role::kEmbedding, "token_embd.weight", 0, s.dim, s.vocab);
  for (uint32_t i = 0; i < s.layers; ++i) declare_layer(i);
  norm("output_norm.weight", s.dim);
  matrix(Role::kHead, "output.weight", s.layers - 1, s.dim, s.vocab);
}

void Synthesizer::declare_layer(uint32_t layer) {
  const Shape& s = request_.shape;
  const std::string p = "blk." + std::to_string(layer) + ".";
  const uint64_t q_size = uint64_t{s.heads} * s.head_dims;
  const uint64_t kv_size = uint64_t{s.kv_heads} * s.head_dims;
  norm(p + "attn_norm.weight", s.dim);
  matrix(Role::kQueryKey, p + "attn_q.weight", layer, s.dim, q_size);
  matrix(Role::kQueryKey, p + "attn_k.weight", layer, s.dim, kv_size);
  matrix(Role::kValue, p + "attn_v.weight", layer, s.dim, kv_size);
  if (s.architecture == "qwen3moe") {
    norm(p + "attn_q_norm.weight", s.head_dims);
    norm(p + "attn_k_norm.weight", s.head_dims);
  }
  matrix(Role::kAttentionOut, p + "attn_output.weight", layer, q_size, s.dim);
  norm(p + "ffn_norm.weight", s.dim);
  if (s.experts > 0) matrix(Role::kRouter, p + "ffn_gate_inp.weight", layer, s.dim, s.experts);
  const std::string suffix = s.experts > 0 ? "_exps.weight" : ".weight";
  matrix(Role::kGate, p + "ffn_gate" + suffix, layer, s.dim, s.ffn, s.slices());
  matrix(Role::kUp, p + "ffn_up" + suffix, layer, s.dim, s.ffn, s.slices());
  matrix(Role::kDown, p + "ffn_down" + suffix, layer, s.ffn, s.dim, s.slices());
}

Status Synthesizer::fill_random(const Declared& tensor) {
  const uint64_t row_bytes = base::row_bytes(tensor.type, tensor.row);
  const uint64_t rows_at_once = std::max<uint64_t>(1, base::kMiB / row_bytes);
  std::vector<uint8_t> bytes;
  const uint64_t all_rows = tensor.rows * tensor.slices;
  for (uint64_t row = 0; row < all_rows; row += rows_at_once) {
    const uint64_t rows = std::min(rows_at_once, all_rows - row);
    bytes.resize(rows * row_bytes);
    if (tensor.type == TensorType::kF32) {
      auto* values = reinterpret_cast<float*>(bytes.data());
      const size_t count = rows * tensor.row;
      kernels::fill_random_floats(count, &random_, values);
      for (size_t i = 0; i < count; ++i)
        values[i] = tensor.role == Role::kNorm ? 1 + 0.05F * values[i] : 0.05F * values[i];
    } else {
      kernels::fill_random_blocks(tensor.type, rows * tensor.row, &random_, bytes.data());
    }
    GANGLION_RETURN_IF_ERROR(writer_.write(bytes));
  }
  return base::ok_status();
}

Status Synthesizer::fill_planted(const Declared& tensor, uint64_t number) {
  const uint64_t row_bytes = base::row_bytes(tensor.type, tensor.row);
  const uint64_t rows_at_once = std::max<uint64_t>(64, kBytesAtOnce / row_bytes);
  std::vector<uint8_t> bytes;
  for (uint64_t slice = 0; slice < tensor.slices; ++slice) {
    planted_->begin_slice(tensor, number, slice);
    for (uint64_t row = 0; row < tensor.rows; row += rows_at_once) {
      const uint64_t rows = std::min(rows_at_once, tensor.rows - row);
      bytes.resize(rows * row_bytes);
      planted_->write_rows(row, rows, bytes);
      GANGLION_RETURN_IF_ERROR(writer_.write(bytes));
    }
  }
  return base::ok_status();
}

}  // namespace ganglion::synthesize

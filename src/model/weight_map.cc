#include "model/weight_map.h"

#include "base/units.h"

namespace ganglion::model {

using base::Code;
using base::Result;
using base::Status;
using format::TensorInfo;
using model_config::LayerConfig;
using model_config::ModelConfig;

namespace {

// Looks tensors up by name and checks shapes; remembers the first error so that the lists below stay
// readable.
class Mapper {
 public:
  Mapper(const format::GgufModel& file, const ModelConfig& config, WeightMap* map)
      : file_(file), config_(config), map_(map) {}

  const Status& status() const { return status_; }
  bool has(const std::string& name) const { return file_.find_tensor(name) != nullptr; }

  MatrixRef matrix(const std::string& name, uint64_t rows, uint64_t cols, uint64_t slices, const char* keys) {
    const TensorInfo* tensor = find(name);
    if (tensor == nullptr) return {};
    if (tensor->dims[0] != cols || tensor->dims[1] != rows || tensor->dims[2] != slices ||
        tensor->dims[3] != 1) {
      wrong_shape(*tensor,
                  slices > 1 ? base::format("[%llu, %llu, %llu]", ull(cols), ull(rows), ull(slices))
                             : base::format("[%llu, %llu]", ull(cols), ull(rows)),
                  keys);
      return {};
    }
    if (!base::tensor_type_info(tensor->type).computable) {
      fail(Status(Code::kUnsupported,
                  base::format("tensor '%s' has type %s, which cannot be computed with", name.c_str(),
                               base::tensor_type_info(tensor->type).name.data())));
      return {};
    }
    map_->matrices.push_back(number(*tensor));
    return {static_cast<uint32_t>(map_->matrices.size() - 1), static_cast<uint32_t>(rows),
            static_cast<uint32_t>(cols), static_cast<uint32_t>(slices), tensor->type};
  }

  /// A tensor of plain numbers or raw bytes. Returns its number, or kAbsent after an error.
  uint32_t plain(const std::string& name, base::TensorType type, uint64_t cols, uint64_t rows,
                 uint64_t slices) {
    const TensorInfo* tensor = find(name);
    if (tensor == nullptr) return kAbsent;
    if (tensor->type != type || tensor->dims[0] != cols || tensor->dims[1] != rows ||
        tensor->dims[2] != slices) {
      wrong_shape(*tensor, base::format("[%llu, %llu, %llu]", ull(cols), ull(rows), ull(slices)),
                  "feed_forward_length and the keys ganglion.pack.*");
      return kAbsent;
    }
    return number(*tensor);
  }
  uint32_t add_matrix(uint32_t tensor) {
    map_->matrices.push_back(tensor);
    return static_cast<uint32_t>(map_->matrices.size() - 1);
  }

  VectorRef vector(const std::string& name, uint64_t size, const char* keys) {
    const TensorInfo* tensor = find(name);
    if (tensor == nullptr) return {};
    if (tensor->elements() != size) {
      wrong_shape(*tensor, base::format("%llu elements", ull(size)), keys);
      return {};
    }
    if (!base::tensor_type_info(tensor->type).computable) {
      fail(Status(Code::kUnsupported,
                  base::format("tensor '%s' has type %s, which cannot be computed with", name.c_str(),
                               base::tensor_type_info(tensor->type).name.data())));
      return {};
    }
    map_->vectors.push_back(number(*tensor));
    return {static_cast<uint32_t>(map_->vectors.size() - 1), static_cast<uint32_t>(size)};
  }

  VectorRef optional_vector(const std::string& name, uint64_t size, const char* keys) {
    return has(name) ? vector(name, size, keys) : VectorRef{};
  }

  void fail(Status status) {
    if (status_.ok()) status_ = std::move(status);
  }

 private:
  static unsigned long long ull(uint64_t value) { return value; }
  uint32_t number(const TensorInfo& tensor) const {
    return static_cast<uint32_t>(&tensor - file_.tensors().data());
  }
  const TensorInfo* find(const std::string& name) {
    const TensorInfo* tensor = file_.find_tensor(name);
    if (tensor == nullptr) fail(Status(Code::kModelFile, "tensor '" + name + "' is missing"));
    return tensor;
  }
  void wrong_shape(const TensorInfo& tensor, const std::string& expected, const char* keys) {
    fail(Status(Code::kModelFile,
                base::format("tensor '%s' has shape %s, expected %s after %s.%s", tensor.name.c_str(),
                             tensor.shape().c_str(), expected.c_str(), config_.architecture.c_str(), keys)));
  }

  const format::GgufModel& file_;
  const ModelConfig& config_;
  WeightMap* map_;
  Status status_;
};

constexpr const char* kHeadKeys = "attention.head_count, head_count_kv, key_length, value_length";

void map_attention(Mapper& m, const ModelConfig& c, const LayerConfig& l, const std::string& p,
                   LayerWeights* w) {
  const uint64_t q_rows = uint64_t{l.heads} * c.key_dims;
  const uint64_t k_rows = uint64_t{l.kv_heads} * c.key_dims;
  const uint64_t v_rows = uint64_t{l.kv_heads} * c.value_dims;
  w->attn_norm = m.vector(p + "attn_norm.weight", c.dim, "embedding_length");
  if (c.layer_norm) w->attn_norm_bias = m.vector(p + "attn_norm.bias", c.dim, "embedding_length");
  if (c.fused_qkv) {
    w->qkv = m.matrix(p + "attn_qkv.weight", q_rows + k_rows + v_rows, c.dim, 1, kHeadKeys);
    w->qkv_bias = m.optional_vector(p + "attn_qkv.bias", q_rows + k_rows + v_rows, kHeadKeys);
  } else {
    w->q = m.matrix(p + "attn_q.weight", q_rows, c.dim, 1, kHeadKeys);
    w->k = m.matrix(p + "attn_k.weight", k_rows, c.dim, 1, kHeadKeys);
    w->v = m.matrix(p + "attn_v.weight", v_rows, c.dim, 1, kHeadKeys);
    w->q_bias = m.optional_vector(p + "attn_q.bias", q_rows, kHeadKeys);
    w->k_bias = m.optional_vector(p + "attn_k.bias", k_rows, kHeadKeys);
    w->v_bias = m.optional_vector(p + "attn_v.bias", v_rows, kHeadKeys);
  }
  w->o = m.matrix(p + "attn_output.weight", c.dim, uint64_t{l.heads} * c.value_dims, 1, kHeadKeys);
  w->o_bias = m.optional_vector(p + "attn_output.bias", c.dim, "embedding_length");
  const uint64_t q_norm = c.full_width_norms ? q_rows : c.key_dims;
  const uint64_t k_norm = c.full_width_norms ? k_rows : c.key_dims;
  const bool optional_here = c.optional_head_norms && m.has(p + "attn_q_norm.weight");
  if (c.head_norms || c.full_width_norms || optional_here) {
    w->q_norm = m.vector(p + "attn_q_norm.weight", q_norm, kHeadKeys);
    w->k_norm = m.vector(p + "attn_k_norm.weight", k_norm, kHeadKeys);
  }
  if (c.sinks) {
    const char* name = m.has(p + "attn_sinks.weight") ? "attn_sinks.weight" : "attn_sinks";
    w->sinks = m.vector(p + name, l.heads, kHeadKeys);
  }
}

void map_latent_attention(Mapper& m, const ModelConfig& c, const LayerConfig& l, const std::string& p,
                          LayerWeights* w) {
  constexpr const char* kKeys = "attention.q_lora_rank, kv_lora_rank, key_length_mla, value_length_mla";
  const auto& mla = c.mla;
  const uint64_t q_rows = uint64_t{l.heads} * (mla.nope_dims + c.rope.dims);
  w->attn_norm = m.vector(p + "attn_norm.weight", c.dim, "embedding_length");
  if (mla.q_rank > 0) {
    w->q_a = m.matrix(p + "attn_q_a.weight", mla.q_rank, c.dim, 1, kKeys);
    w->q_a_norm = m.vector(p + "attn_q_a_norm.weight", mla.q_rank, kKeys);
  } else {
    w->q = m.matrix(p + "attn_q.weight", q_rows, c.dim, 1, kKeys);
  }
  w->kv_a = m.matrix(p + "attn_kv_a_mqa.weight", mla.kv_rank + c.rope.dims, c.dim, 1, kKeys);
  w->kv_a_norm = m.vector(p + "attn_kv_a_norm.weight", mla.kv_rank, kKeys);
  if (mla.q_rank > 0) w->q_b = m.matrix(p + "attn_q_b.weight", q_rows, mla.q_rank, 1, kKeys);
  w->k_b = m.matrix(p + "attn_k_b.weight", mla.kv_rank, mla.nope_dims, l.heads, kKeys);
  w->v_b = m.matrix(p + "attn_v_b.weight", mla.value_dims, mla.kv_rank, l.heads, kKeys);
  w->o = m.matrix(p + "attn_output.weight", c.dim, uint64_t{l.heads} * mla.value_dims, 1, kKeys);
}

constexpr uint32_t kMostPackedNeurons = 65536;  // Of an expert: their numbers take 16 bits.

// Gate, up and transposed down rows as bundles with their predictor, or gates and bundles of the rest.
void map_bundles(Mapper& m, const ModelConfig& c, const model_config::PackConfig::Layer& layer, uint32_t ffn,
                 uint32_t experts, const std::string& p, LayerWeights* w) {
  const auto fail = [&](const std::string& what) {
    m.fail(Status(Code::kModelFile, "the keys ganglion.pack.* of layer '" + p + "': " + what));
  };
  const base::TensorTypeInfo* gate = base::find_tensor_type(layer.gate_type);
  const base::TensorTypeInfo* up = base::find_tensor_type(layer.up_type);
  if (gate == nullptr || up == nullptr || !gate->computable || !up->computable) return fail("unknown type");
  size_t down = 0;
  while (down < kernels::kDownTypes && c.pack.down != kernels::down_type_names()[down]) ++down;
  if (down == kernels::kDownTypes) return fail("unknown type of down rows '" + c.pack.down + "'");
  if (c.dim % 32 != 0 || c.dim % gate->block_elems != 0 || c.dim % up->block_elems != 0 ||
      ffn > kMostPackedNeurons || c.fused_gate_up) {
    return fail("this shape cannot be packed");
  }
  BundleRef& b = w->bundle;
  b.up_type = c.ungated ? gate->type : up->type;
  b.down_type = static_cast<kernels::DownType>(down);
  const bool predicted = layer.rank > 0;
  b.up_offset = predicted ? static_cast<uint32_t>(base::row_bytes(gate->type, c.dim)) : 0;
  b.down_offset = b.up_offset;
  if (!c.ungated) b.down_offset += static_cast<uint32_t>(base::row_bytes(up->type, c.dim));
  b.bytes = b.down_offset + static_cast<uint32_t>(kernels::down_row_bytes(b.down_type, c.dim));
  b.stride = layer.stride;
  if (b.stride < b.bytes) return fail(base::format("stride %u for bundles of %u bytes", b.stride, b.bytes));
  constexpr const char* kKeys = "feed_forward_length and ganglion.pack.rank";
  if (predicted) {
    b.predict_low = m.matrix(p + "ffn_predict_low.weight", layer.rank, c.dim, experts, kKeys);
    b.predict_out = m.matrix(p + "ffn_predict_out.weight", layer.rank, ffn, experts, kKeys);
    b.rectified = layer.rectified != 0;
    b.threshold = m.vector(p + "ffn_predict_threshold.weight", uint64_t{experts} * ffn, kKeys);
  }
  const bool known =
      b.predict_out.type == base::TensorType::kQ4_0 || b.predict_out.type == base::TensorType::kQ8_0;
  if (predicted && (ffn % 32 != 0 || !known))
    return fail("predictors are rows of whole blocks of Q4_0 or Q8_0");
  if (!predicted) b.gates = m.matrix(p + "ffn_bundle_gate.weight", ffn, c.dim, experts, kKeys);
  if (b.gates.present() && b.gates.type != gate->type) return fail("gates are of another type");
  if (c.activation == model_config::FfnActivation::kSilu)
    b.gate_threshold = m.vector(p + "ffn_gate_threshold.weight", 1, "ganglion.pack.sparsify");
  if (c.ungated) b.bias = m.optional_vector(p + "ffn_bundle_bias.weight", ffn, kKeys);
  b.tensor = m.plain(p + "ffn_bundle.weight", base::TensorType::kI8, b.stride, ffn, experts);
  b.order_tensor = m.plain(p + "ffn_order.weight", base::TensorType::kI32, ffn, experts, 1);
  b.frequency_tensor = m.plain(p + "ffn_frequency.weight", base::TensorType::kF32, ffn, experts, 1);
  if (b.tensor == kAbsent) return;
  const uint32_t rows = c.ungated && !predicted ? b.gates.index : m.add_matrix(b.tensor);
  b.rows = {rows, ffn, c.dim, experts, predicted ? gate->type : b.up_type};
}

void map_dense_ffn(Mapper& m, const ModelConfig& c, uint64_t ffn, const std::string& p, const char* suffix,
                   LayerWeights* w) {
  constexpr const char* kKeys = "feed_forward_length";
  const std::string s = suffix;
  const bool bundled = w->bundle.present() && s.empty();
  if (c.fused_gate_up) {
    w->gate_up = m.matrix(p + "ffn_up" + s + ".weight", 2 * ffn, c.dim, 1, kKeys);
  } else {
    if (c.ungated && !bundled) {
      w->gate = m.matrix(p + "ffn_up" + s + ".weight", ffn, c.dim, 1, kKeys);
    } else if (!bundled) {
      w->gate = m.matrix(p + "ffn_gate" + s + ".weight", ffn, c.dim, 1, kKeys);
      w->up = m.matrix(p + "ffn_up" + s + ".weight", ffn, c.dim, 1, kKeys);
    }
    w->gate_bias = m.optional_vector(p + (c.ungated ? "ffn_up" : "ffn_gate") + s + ".bias", ffn, kKeys);
    if (!c.ungated) w->up_bias = m.optional_vector(p + "ffn_up" + s + ".bias", ffn, kKeys);
  }
  if (!bundled || !c.pack.slim) w->down = m.matrix(p + "ffn_down" + s + ".weight", c.dim, ffn, 1, kKeys);
  w->down_bias = m.optional_vector(p + "ffn_down" + s + ".bias", c.dim, "embedding_length");
}

void map_experts(Mapper& m, const ModelConfig& c, const model_config::PackConfig::Layer* packed,
                 const std::string& p, LayerWeights* w) {
  constexpr const char* kKeys = "expert_count, expert_feed_forward_length";
  const auto& moe = c.moe;
  if (!moe.router_before_attention)
    w->router = m.matrix(p + "ffn_gate_inp.weight", moe.expert_count, c.dim, 1, kKeys);
  w->router_bias = m.optional_vector(p + "ffn_gate_inp.bias", moe.expert_count, kKeys);
  w->selection_bias = m.optional_vector(p + "exp_probs_b.bias", moe.expert_count, kKeys);
  if (packed != nullptr) {
    map_bundles(m, c, *packed, moe.expert_ffn, moe.expert_count, p, w);
  } else {
    w->expert_gate = m.matrix(p + "ffn_gate_exps.weight", moe.expert_ffn, c.dim, moe.expert_count, kKeys);
    w->expert_up = m.matrix(p + "ffn_up_exps.weight", moe.expert_ffn, c.dim, moe.expert_count, kKeys);
  }
  if (packed == nullptr || !c.pack.slim)
    w->expert_down = m.matrix(p + "ffn_down_exps.weight", c.dim, moe.expert_ffn, moe.expert_count, kKeys);
  const uint64_t all = uint64_t{moe.expert_count} * moe.expert_ffn;
  w->expert_gate_bias = m.optional_vector(p + "ffn_gate_exps.bias", all, kKeys);
  w->expert_up_bias = m.optional_vector(p + "ffn_up_exps.bias", all, kKeys);
  w->expert_down_bias =
      m.optional_vector(p + "ffn_down_exps.bias", uint64_t{moe.expert_count} * c.dim, kKeys);
  if (moe.shared_ffn > 0) map_dense_ffn(m, c, moe.shared_ffn, p, "_shexp", w);
}

void map_layer(Mapper& m, const ModelConfig& c, size_t index, const std::string& p, LayerWeights* w) {
  const LayerConfig& l = c.layers[index];
  const model_config::PackConfig::Layer* packed =
      c.pack.present && c.pack.layers[index].stride > 0 ? &c.pack.layers[index] : nullptr;
  if (l.moe && c.moe.router_before_attention) {
    w->router = m.matrix(p + "ffn_gate_inp.weight", c.moe.expert_count, c.dim, 1, "expert_count");
  }
  if (c.mla.kv_rank > 0) {
    map_latent_attention(m, c, l, p, w);
  } else {
    map_attention(m, c, l, p, w);
  }
  if (c.post_norms) w->post_attn_norm = m.vector(p + "post_attention_norm.weight", c.dim, "embedding_length");
  w->ffn_norm = m.vector(p + c.ffn_norm_name + ".weight", c.dim, "embedding_length");
  if (c.layer_norm) w->ffn_norm_bias = m.vector(p + c.ffn_norm_name + ".bias", c.dim, "embedding_length");
  if (l.moe) {
    map_experts(m, c, packed, p, w);
  } else {
    if (packed != nullptr) map_bundles(m, c, *packed, l.ffn, 1, p, w);
    map_dense_ffn(m, c, l.ffn, p, "", w);
  }
  if (c.post_norms) w->post_ffn_norm = m.vector(p + "post_ffw_norm.weight", c.dim, "embedding_length");
}

}  // namespace

Result<WeightMap> map_weights(const format::GgufModel& file, ModelConfig* config) {
  WeightMap map;
  Mapper m(file, *config, &map);
  const TensorInfo* embedding = file.find_tensor("token_embd.weight");
  if (embedding == nullptr) return Status(Code::kModelFile, "tensor 'token_embd.weight' is missing");
  if (config->vocab == 0)
    config->vocab = static_cast<uint32_t>(std::min<uint64_t>(embedding->dims[1], UINT32_MAX));
  map.embedding_tensor = static_cast<uint32_t>(embedding - file.tensors().data());
  if (config->learned_positions) {
    map.positions = m.vector("position_embd.weight", uint64_t{config->context_trained} * config->dim,
                             "context_length, embedding_length");
  }
  const uint64_t factors = config->rope.dims / 2;
  map.rope_factors = m.optional_vector("rope_freqs.weight", factors, "rope.dimension_count");
  map.rope_factors_long = m.optional_vector("rope_factors_long.weight", factors, "rope.dimension_count");
  map.rope_factors_short = m.optional_vector("rope_factors_short.weight", factors, "rope.dimension_count");
  const std::string beyond = "blk." + std::to_string(config->block_count) + ".";
  for (const TensorInfo& tensor : file.tensors()) {
    if (tensor.name.rfind(beyond, 0) == 0) {
      return Status(Code::kModelFile,
                    base::format("tensor '%s' is beyond %s.block_count, which is %u", tensor.name.c_str(),
                                 config->architecture.c_str(), config->block_count));
    }
  }
  for (size_t i = 0; i < config->layers.size() && m.status().ok(); ++i) {
    map.layers.emplace_back();
    map_layer(m, *config, i, "blk." + std::to_string(i) + ".", &map.layers.back());
  }
  map.output_norm = m.vector("output_norm.weight", config->dim, "embedding_length");
  if (config->layer_norm)
    map.output_norm_bias = m.vector("output_norm.bias", config->dim, "embedding_length");
  constexpr const char* kKeys = "vocab_size, embedding_length";
  const char* head = m.has("output.weight") ? "output.weight" : "token_embd.weight";
  map.output = m.matrix(head, config->vocab, config->dim, 1, kKeys);
  if (!m.status().ok()) return m.status();
  if (embedding->dims[0] != config->dim || embedding->dims[1] != config->vocab || embedding->dims[2] != 1 ||
      !base::tensor_type_info(embedding->type).computable) {
    return Status(
        Code::kModelFile,
        base::format("tensor 'token_embd.weight' has shape %s and type %s, expected [%u, %u] "
                     "after %s.%s",
                     embedding->shape().c_str(), base::tensor_type_info(embedding->type).name.data(),
                     config->dim, config->vocab, config->architecture.c_str(), kKeys));
  }
  return map;
}

}  // namespace ganglion::model

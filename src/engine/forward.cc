#include "engine/forward.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "engine/forward_buffers.h"
#include "platform/clock.h"

namespace ganglion::engine {

using base::Code;
using base::Status;
using model::LayerWeights;
using model::MatrixRef;
using model_config::LayerConfig;
using model_config::ModelConfig;

namespace {

std::span<const float> factors_of(const ForwardContext& context, const model::VectorRef& ref) {
  if (!ref.present()) return {};
  return {context.vectors[ref.index], ref.size};
}

// Long-context Phi-3 has one set of rope factors within the original context and one for beyond.
model::VectorRef rope_factors(const ForwardContext& context) {
  const model::WeightMap& weights = *context.weights;
  const bool beyond = context.context > context.config->rope.original_context;
  const model::VectorRef& by_length = beyond ? weights.rope_factors_long : weights.rope_factors_short;
  return by_length.present() ? by_length : weights.rope_factors;
}

}  // namespace

size_t ForwardPass::scratch_bytes(const ForwardContext& context, size_t rows) {
  ForwardContext of_rows = context;
  of_rows.chunk = rows;
  ScratchAllocator counter;
  lay_out(of_rows, counter);
  return counter.used();
}

ForwardPass::ForwardPass(const ForwardContext& context, std::span<uint8_t> scratch) : context_(context) {
  use_scratch(context.chunk, scratch);
  const ModelConfig& config = *context.config;
  for (const LayerConfig& layer : config.layers)
    layouts_.push_back(model::kv_layout(config, layer, context.kv_type));
  rope_ = std::make_unique<model::Rope>(config.rope, factors_of(context, rope_factors(context)));
  rope_local_ = std::make_unique<model::Rope>(config.rope_local, std::span<const float>());
}

void ForwardPass::use_scratch(size_t rows, std::span<uint8_t> scratch) {
  context_.chunk = rows;
  ScratchAllocator allocator(scratch);
  buffers_ = std::make_unique<Buffers>(lay_out(context_, allocator));
  row_reads_.resize(rows);
}

ForwardPass::~ForwardPass() = default;

Status ForwardPass::run(std::span<const Row> rows, const PassMode& mode, const std::atomic<bool>* cancel,
                        PassSink* sink) {
  GANGLION_CHECK(!rows.empty() && rows.size() <= context_.chunk);
  const ModelConfig& config = *context_.config;
  const bool slim = config.pack.slim;
  GANGLION_CHECK((mode.exact && !slim) || rows.size() <= kSparseRows);
  const int64_t start_ns = platform::now_ns();
  const int64_t waited_ns = wait_ns();
  single_row_ = rows.size() == 1;
  exact_ = (mode.exact && !slim) || context_.bundles == nullptr;
  all_neurons_ = mode.exact && !exact_;
  bool wants_output = false;
  for (const Row& row : rows) wants_output = wants_output || row.wants_logits;
  context_.stream->begin_pass({wants_output, exact_}, {mode.next_output, mode.next_exact && !slim});
  if (routing_sink_ != nullptr) routing_sink_->begin_pass(rows.front().position);

  GANGLION_RETURN_IF_ERROR(embed(rows));
  for_rows(rows.size(), [&](size_t i) {
    rope_->angles(static_cast<int64_t>(rows[i].position), buffers_->angles + i * buffers_->angle_stride);
    rope_local_->angles(static_cast<int64_t>(rows[i].position),
                        buffers_->angles_local + i * buffers_->angle_stride);
  });
  for (size_t layer = 0; layer < config.layers.size(); ++layer) {
    if (cancel != nullptr && cancel->load(std::memory_order_relaxed))
      return Status(Code::kCancelled, "interrupted");
    sink->hidden(layer, {buffers_->hidden + (rows.size() - 1) * config.dim, config.dim});
    const LayerWeights& w = context_.weights->layers[layer];
    const bool moe = config.layers[layer].moe;

    // SmallThinker: the experts are known before attention.
    if (moe && config.moe.router_before_attention) {
      for_rows(rows.size(), [&](size_t i) {
        std::memcpy(buffers_->normed.floats(i), buffers_->hidden + i * config.dim,
                    config.dim * sizeof(float));
        buffers_->normed.store_forms(*context_.kernels, forms_of({&w.router}), i, config.dim);
      });
      GANGLION_RETURN_IF_ERROR(route(rows.size(), layer));
      read_routed(rows.size(), layer);
    }
    const bool sparse = w.bundle.present() && !exact_;
    if (sparse) GANGLION_RETURN_IF_ERROR(predict_ahead(layer));

    // h += attention(norm(h))
    normalise(w.attn_norm, w.attn_norm_bias, rows.size(),
              forms_of({&w.q, &w.k, &w.v, &w.qkv, &w.q_a, &w.kv_a}));
    GANGLION_RETURN_IF_ERROR(attention(rows, layer));
    add_residual(vector(w.o_bias), vector(w.post_attn_norm), rows.size());

    // h += ffn(norm(h))
    normalise(w.ffn_norm, w.ffn_norm_bias, rows.size(), ffn_forms(w));
    if (moe && !config.moe.router_before_attention) GANGLION_RETURN_IF_ERROR(route(rows.size(), layer));
    for (size_t i = 0; i < rows.size(); ++i) {
      sink->ffn_input(layer, i, {buffers_->normed.floats(i), config.dim});
      if (moe) sink->routed(layer, i, {buffers_->routed + i * config.moe.used_count, config.moe.used_count});
    }
    if (sparse) {
      GANGLION_RETURN_IF_ERROR(sparse_ffn(rows.size(), layer));
    } else if (moe) {
      GANGLION_RETURN_IF_ERROR(expert_ffn(rows.size(), layer));
    } else {
      GANGLION_RETURN_IF_ERROR(dense_ffn(rows.size(), layer, config.layers[layer].ffn, false));
    }
    if (moe) {
      if (config.moe.shared_ffn > 0) {
        GANGLION_RETURN_IF_ERROR(dense_ffn(rows.size(), layer, config.moe.shared_ffn, true));
      }
    }
    add_residual(vector(w.down_bias), vector(w.post_ffn_norm), rows.size());
  }
  if (wants_output) GANGLION_RETURN_IF_ERROR(output(rows, sink));
  context_.stream->tick();
  if (!exact_ && !all_neurons_) context_.bundles->tick();
  if (single_row_ && !all_neurons_) {
    look_ahead_.add(static_cast<double>(platform::now_ns() - start_ns),
                    static_cast<double>(wait_ns() - waited_ns));
  }
  return base::ok_status();
}

int64_t ForwardPass::wait_ns() const {
  const int64_t bundles = context_.bundles == nullptr ? 0 : context_.bundles->stats().wait_ns;
  return context_.stream->stats().wait_ns + bundles;
}

// hidden [T][D] = rows of the embedding, read one by one (from memory where it is also the resident head).
Status ForwardPass::embed(std::span<const Row> rows) {
  const ModelConfig& config = *context_.config;
  const size_t row_bytes = base::row_bytes(context_.embedding_type, config.dim);
  const kernels::DequantizeFn dequantize =
      context_.kernels->dequantize[static_cast<size_t>(context_.embedding_type)];
  Status error;
  size_t left = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    async_io::ReadOp& op = row_reads_[i];
    op = {};
    op.file = &context_.store->file(context_.embedding_shard);
    op.offset = context_.embedding_offset + static_cast<uint64_t>(rows[i].token) * row_bytes;
    op.needed = row_bytes;
    op.memory = buffers_->embedding_rows + i * buffers_->embedding_stride;
    op.priority = async_io::Priority::kUrgent;
    op.label = "token_embd.weight";
    op.context = &left;
    op.done = [](async_io::ReadOp* done) { --*static_cast<size_t*>(done->context); };
    ++left;
    async_io::ReadOp* submitted = &op;
    context_.queue->submit({&submitted, 1});
  }
  const int64_t wait_start_ns = platform::now_ns();
  while (left > 0) context_.queue->poll(true);
  context_.stream->add_wait_ns(platform::now_ns() - wait_start_ns);
  for (size_t i = 0; i < rows.size(); ++i) {
    GANGLION_RETURN_IF_ERROR(row_reads_[i].status);
  }
  const float* positions = vector(context_.weights->positions);  // [context][D], or null
  for_rows(rows.size(), [&](size_t i) {
    float* hidden = buffers_->hidden + i * config.dim;
    dequantize(async_io::wanted(row_reads_[i]), config.dim, hidden);
    if (config.embedding_scale != 1) {
      for (uint32_t d = 0; d < config.dim; ++d) hidden[d] *= config.embedding_scale;
    }
    if (positions != nullptr) add_bias(positions + rows[i].position * config.dim, config.dim, hidden);
  });
  return base::ok_status();
}

// out [D] = RMSNorm(x), or where there is a bias LayerNorm(x): the RMS norm of x - mean(x), plus the bias.
void ForwardPass::normalise_row(const float* x, const float* weight, const float* bias, float* out) const {
  const ModelConfig& config = *context_.config;
  if (bias != nullptr) {
    double sum = 0;
    for (uint32_t d = 0; d < config.dim; ++d) sum += static_cast<double>(x[d]);
    const auto mean = static_cast<float>(sum / config.dim);
    for (uint32_t d = 0; d < config.dim; ++d) out[d] = x[d] - mean;
    x = out;
  }
  context_.kernels->rms_norm(x, weight, config.dim, config.norm_epsilon, out);
  add_bias(bias, config.dim, out);
}

// normed [T][D] = norm(hidden), with the forms that the next matrices read.
void ForwardPass::normalise(const model::VectorRef& weight, const model::VectorRef& bias, size_t rows,
                            const FormSet& forms) {
  const ModelConfig& config = *context_.config;
  for_rows(rows, [&](size_t i) {
    normalise_row(buffers_->hidden + i * config.dim, vector(weight), vector(bias),
                  buffers_->normed.floats(i));
    buffers_->normed.store_forms(*context_.kernels, forms, i, config.dim);
  });
}

// hidden += residual_scale * norm(projected + bias)
void ForwardPass::add_residual(const float* bias, const float* norm, size_t rows) {
  const ModelConfig& config = *context_.config;
  for_rows(rows, [&](size_t i) {
    float* x = buffers_->projected + i * config.dim;
    add_bias(bias, config.dim, x);
    if (norm != nullptr) context_.kernels->rms_norm(x, norm, config.dim, config.norm_epsilon, x);
    context_.kernels->add_scaled(x, config.residual_scale, config.dim, buffers_->hidden + i * config.dim);
  });
}

// projected [T][D] = O (softmax(Q K^T) V)
Status ForwardPass::attention(std::span<const Row> rows, size_t layer) {
  const ModelConfig& config = *context_.config;
  const LayerConfig& l = config.layers[layer];
  const bool latent = config.mla.kv_rank > 0;
  GANGLION_RETURN_IF_ERROR(latent ? project_latent(rows.size(), layer) : project_qkv(rows.size(), layer));
  position_heads(rows, layer);

  const model::AttentionShape shape = {.heads = l.heads,
                                       .window = l.window,
                                       .scale = config.attention_scale,
                                       .softcap = config.attention_softcap,
                                       .sinks = vector(context_.weights->layers[layer].sinks)};
  const ActivationRows& out = latent ? buffers_->latent : buffers_->attended;
  for_rows(rows.size() * l.heads, [&](size_t unit) {
    const size_t i = unit / l.heads;
    const auto head = static_cast<uint32_t>(unit % l.heads);
    const float* q = buffers_->qkv + i * buffers_->qkv_stride + size_t{head} * config.key_dims;
    float* to = latent ? out.floats(unit) : out.floats(i) + size_t{head} * config.value_dims;
    model::attend(*context_.kernels, layouts_[layer], shape, *rows[i].sequence, layer, rows[i].position, head,
                  q, to);
  });
  return attention_output(rows.size(), layer);
}

// qkv [T][H*key | K*key | K*value]
Status ForwardPass::project_qkv(size_t rows, size_t layer) {
  const ModelConfig& config = *context_.config;
  const LayerConfig& l = config.layers[layer];
  const LayerWeights& w = context_.weights->layers[layer];
  float* q = buffers_->qkv;
  float* k = q + size_t{l.heads} * config.key_dims;
  float* v = k + size_t{l.kv_heads} * config.key_dims;
  products_.clear();
  for (const auto& [matrix, out] : {std::pair{&w.qkv, q}, {&w.q, q}, {&w.k, k}, {&w.v, v}}) {
    if (!matrix->present()) continue;
    products_.push_back({.matrix = matrix,
                         .x = &buffers_->normed,
                         .tokens = rows,
                         .out = out,
                         .out_stride = buffers_->qkv_stride});
  }
  GANGLION_RETURN_IF_ERROR(context_.multiplier->run(products_));
  const size_t q_size = size_t{l.heads} * config.key_dims;
  const size_t k_size = size_t{l.kv_heads} * config.key_dims;
  const size_t v_size = size_t{l.kv_heads} * config.value_dims;
  for_rows(rows, [&](size_t i) {
    const size_t at = i * buffers_->qkv_stride;
    add_bias(vector(w.qkv_bias), q_size + k_size + v_size, q + at);
    add_bias(vector(w.q_bias), q_size, q + at);
    add_bias(vector(w.k_bias), k_size, k + at);
    add_bias(vector(w.v_bias), v_size, v + at);
  });
  return base::ok_status();
}

// The latent form: q_h = [k_b_h q_nope_h | rope(q_rope_h)], k = [norm(c) | rope(k_rope)], so that a head's
// key and value matrices are applied to queries and results and the cache holds one vector per position.
// Source: DeepSeek-V2 (2405.04434) section 2.1, with the absorption of its appendix.
Status ForwardPass::project_latent(size_t rows, size_t layer) {
  const ModelConfig& config = *context_.config;
  const LayerConfig& l = config.layers[layer];
  const LayerWeights& w = context_.weights->layers[layer];
  const auto& mla = config.mla;
  const size_t head = size_t{mla.nope_dims} + config.rope.dims;
  const size_t low = size_t{mla.kv_rank} + config.rope.dims;
  const Product kv = {
      .matrix = &w.kv_a, .x = &buffers_->normed, .tokens = rows, .out = buffers_->kv_low, .out_stride = low};
  const Product full = {.matrix = mla.q_rank > 0 ? &w.q_b : &w.q,
                        .x = mla.q_rank > 0 ? &buffers_->q_low : &buffers_->normed,
                        .tokens = rows,
                        .out = buffers_->q_full,
                        .out_stride = l.heads * head};
  if (mla.q_rank > 0) {
    products_ = {{.matrix = &w.q_a,
                  .x = &buffers_->normed,
                  .tokens = rows,
                  .out = buffers_->q_low.floats(0),
                  .out_stride = buffers_->q_low.float_stride()},
                 kv};
    GANGLION_RETURN_IF_ERROR(context_.multiplier->run(products_));
    for_rows(rows, [&](size_t i) {
      float* x = buffers_->q_low.floats(i);
      context_.kernels->rms_norm(x, vector(w.q_a_norm), mla.q_rank, config.norm_epsilon, x);
      buffers_->q_low.store_forms(*context_.kernels, forms_of({&w.q_b}), i, mla.q_rank);
    });
    products_ = {full};
  } else {
    products_ = {full, kv};
  }
  GANGLION_RETURN_IF_ERROR(context_.multiplier->run(products_));
  const size_t k_at = size_t{l.heads} * config.key_dims;
  for_rows(rows, [&](size_t i) {
    float* row = buffers_->qkv + i * buffers_->qkv_stride;
    for (size_t h = 0; h < l.heads; ++h) {
      const float* q = buffers_->q_full + (i * l.heads + h) * head;
      std::memcpy(buffers_->q_nope.floats(i * l.heads + h), q, mla.nope_dims * sizeof(float));
      buffers_->q_nope.store_forms(*context_.kernels, forms_of({&w.k_b}), i * l.heads + h, mla.nope_dims);
      std::memcpy(row + h * config.key_dims + mla.kv_rank, q + mla.nope_dims,
                  config.rope.dims * sizeof(float));
    }
    const float* kv_row = buffers_->kv_low + i * low;
    context_.kernels->rms_norm(kv_row, vector(w.kv_a_norm), mla.kv_rank, config.norm_epsilon, row + k_at);
    std::memcpy(row + k_at + mla.kv_rank, kv_row + mla.kv_rank, config.rope.dims * sizeof(float));
  });
  products_.clear();
  for (uint32_t h = 0; h < l.heads; ++h) {
    products_.push_back({.matrix = &w.k_b,
                         .slice = h,
                         .x = &buffers_->q_nope,
                         .first_row = h,
                         .row_step = l.heads,
                         .tokens = rows,
                         .out = buffers_->qkv + size_t{h} * config.key_dims,
                         .out_stride = buffers_->qkv_stride});
  }
  return context_.multiplier->run(products_);
}

// Norms and rotation of query and key heads; keys and values go into the cache.
void ForwardPass::position_heads(std::span<const Row> rows, size_t layer) {
  const ModelConfig& config = *context_.config;
  const LayerConfig& l = config.layers[layer];
  const LayerWeights& w = context_.weights->layers[layer];
  const model::Rope& rope = l.local_rope ? *rope_local_ : *rope_;
  const float* angles = l.local_rope ? buffers_->angles_local : buffers_->angles;
  const size_t rope_at = config.mla.kv_rank;  // The latent part of a head is not rotated.
  for_rows(rows.size(), [&](size_t i) {
    float* q = buffers_->qkv + i * buffers_->qkv_stride;
    float* k = q + size_t{l.heads} * config.key_dims;
    float* v = k + size_t{l.kv_heads} * config.key_dims;
    const auto norm = [&](float* x, size_t heads, const model::VectorRef& weight) {
      if (!weight.present()) return;
      const size_t size = config.full_width_norms ? heads * config.key_dims : config.key_dims;
      const size_t count = config.full_width_norms ? 1 : heads;
      for (size_t h = 0; h < count; ++h) {
        context_.kernels->rms_norm(x + h * size, vector(weight), size, config.norm_epsilon, x + h * size);
      }
    };
    norm(q, l.heads, w.q_norm);
    norm(k, l.kv_heads, w.k_norm);
    if (l.rope) {
      rope.rotate(q + rope_at, l.heads, config.key_dims, angles + i * buffers_->angle_stride);
      rope.rotate(k + rope_at, l.kv_heads, config.key_dims, angles + i * buffers_->angle_stride);
    }
    model::store_kv(*context_.kernels, layouts_[layer], *rows[i].sequence, layer, rows[i].position, k, v);
  });
}

Status ForwardPass::attention_output(size_t rows, size_t layer) {
  const ModelConfig& config = *context_.config;
  const LayerConfig& l = config.layers[layer];
  const LayerWeights& w = context_.weights->layers[layer];
  size_t width = size_t{l.heads} * config.value_dims;
  if (config.mla.kv_rank > 0) {
    width = size_t{l.heads} * config.mla.value_dims;
    for_rows(rows * l.heads, [&](size_t unit) {
      buffers_->latent.store_forms(*context_.kernels, forms_of({&w.v_b}), unit, config.mla.kv_rank);
    });
    products_.clear();
    for (uint32_t h = 0; h < l.heads; ++h) {
      products_.push_back({.matrix = &w.v_b,
                           .slice = h,
                           .x = &buffers_->latent,
                           .first_row = h,
                           .row_step = l.heads,
                           .tokens = rows,
                           .out = buffers_->attended.floats(0) + size_t{h} * config.mla.value_dims,
                           .out_stride = buffers_->attended.float_stride()});
    }
    GANGLION_RETURN_IF_ERROR(context_.multiplier->run(products_));
  }
  for_rows(rows,
           [&](size_t i) { buffers_->attended.store_forms(*context_.kernels, forms_of({&w.o}), i, width); });
  products_ = {{.matrix = &w.o,
                .x = &buffers_->attended,
                .tokens = rows,
                .out = buffers_->projected,
                .out_stride = config.dim}};
  return context_.multiplier->run(products_);
}

// ffn [row_begin + i] = act(gate) * up, with the forms that the down matrix reads.
void ForwardPass::activate(size_t rows, size_t width, size_t row_begin, const FormSet& forms,
                           const float* gate_bias, const float* up_bias, const uint16_t* order) {
  const auto activation =
      context_.kernels->gated_activation[static_cast<size_t>(context_.config->activation)];
  const float threshold = context_.config->ffn_threshold;
  for_rows(rows, [&](size_t i) {
    float* gate = buffers_->ffn.floats(row_begin + i);
    float* up = buffers_->up + (row_begin + i) * buffers_->ffn.float_stride();
    add_bias(gate_bias, width, gate);
    add_bias(up_bias, width, up);
    if (context_.config->ungated) std::fill_n(up, width, 1.0F);
    if (threshold > 0) {  // FATReLU (ProSparse)
      for (size_t k = 0; k < width; ++k) gate[k] = gate[k] > threshold ? gate[k] : 0;
    }
    activation(gate, up, width);
    if (order != nullptr) {  // From pack order to that of the down matrix.
      for (size_t p = 0; p < width; ++p) up[order[p]] = gate[p];
      std::memcpy(gate, up, width * sizeof(float));
    }
    buffers_->ffn.store_forms(*context_.kernels, forms, row_begin + i, width);
  });
}

// The gate up to which a neuron's activation is zero, whatever its up is.
std::optional<float> ForwardPass::closed_gate() const {
  using model_config::FfnActivation;
  const FfnActivation activation = context_.config->activation;
  if (activation != FfnActivation::kRelu && activation != FfnActivation::kDRelu) return std::nullopt;
  return context_.config->ffn_threshold;
}

// Appends the products that fill rows [at, at + count) of `ffn` with gates and of `up` with ups.
void ForwardPass::add_gate_up(const GateUp& from) {
  const size_t stride = buffers_->ffn.float_stride();
  Product gate = {.matrix = from.gate,
                  .slice = from.expert,
                  .x = from.x,
                  .first_row = from.at,
                  .tokens = from.count,
                  .out = buffers_->ffn.floats(from.at),
                  .out_stride = stride};
  float* up_out = buffers_->up + from.at * stride;
  const bool ungated = context_.config->ungated;
  const bool whole_bundles = from.bundle != nullptr && !from.bundle->gates.present();
  if (whole_bundles) {
    gate.matrix = &from.bundle->rows;
    gate.bundle = ungated ? nullptr : from.bundle;
    gate.up_out = up_out;
    gate.closed_gate = closed_gate();
    gate.prefix = context_.bundles->prefix(from.set);
  } else if (from.bundle != nullptr) {
    gate.matrix = &from.bundle->gates;
  }
  products_.push_back(gate);
  if (whole_bundles || ungated) return;
  Product up = gate;
  up.matrix = from.up;
  up.out = up_out;
  if (from.bundle != nullptr) {
    up.matrix = &from.bundle->rows;
    up.prefix = context_.bundles->prefix(from.set);
  }
  products_.push_back(up);
}

// projected [T][D] = down(act(gate(x)) * up(x)), or added to it.
Status ForwardPass::dense_ffn(size_t rows, size_t layer, size_t width, bool accumulate) {
  const ModelConfig& config = *context_.config;
  const LayerWeights& w = context_.weights->layers[layer];
  const size_t stride = buffers_->ffn.float_stride();
  const bool bundled = w.bundle.present() && !accumulate;
  products_.clear();
  if (config.fused_gate_up && !bundled) {
    products_ = {{.matrix = &w.gate_up,
                  .x = &buffers_->normed,
                  .tokens = rows,
                  .out = buffers_->gate_up,
                  .out_stride = 2 * width}};
  } else {
    add_gate_up({.gate = &w.gate,
                 .up = &w.up,
                 .bundle = bundled ? &w.bundle : nullptr,
                 .set = bundled ? context_.bundles->set_of(layer, 0) : 0,
                 .x = &buffers_->normed,
                 .count = rows});
  }
  GANGLION_RETURN_IF_ERROR(context_.multiplier->run(products_));
  if (config.fused_gate_up) {
    for_rows(rows, [&](size_t i) {
      const float* both = buffers_->gate_up + i * 2 * width;
      std::memcpy(buffers_->ffn.floats(i), both, width * sizeof(float));
      std::memcpy(buffers_->up + i * stride, both + width, width * sizeof(float));
    });
  }
  activate(rows, width, 0, forms_of({&w.down}), vector(bundled ? w.bundle.bias : w.gate_bias),
           vector(w.up_bias), bundled ? context_.orders[layer] : nullptr);
  float* out = accumulate ? buffers_->expert_out : buffers_->projected;
  products_ = {
      {.matrix = &w.down, .x = &buffers_->ffn, .tokens = rows, .out = out, .out_stride = config.dim}};
  GANGLION_RETURN_IF_ERROR(context_.multiplier->run(products_));
  if (accumulate) {
    for_rows(rows, [&](size_t i) {
      context_.kernels->add_scaled(out + i * config.dim, 1, config.dim, buffers_->projected + i * config.dim);
    });
  }
  return base::ok_status();
}

// Logits of the rows that want them, a few at a time.
Status ForwardPass::output(std::span<const Row> rows, PassSink* sink) {
  const ModelConfig& config = *context_.config;
  const MatrixRef& head = context_.weights->output;
  size_t next = 0;
  while (next < rows.size()) {
    size_t count = 0;
    size_t row_of[64];
    for (; next < rows.size() && count < std::min<size_t>(context_.logit_rows, std::size(row_of)); ++next) {
      if (rows[next].wants_logits) row_of[count++] = next;
    }
    if (count == 0) break;
    for_rows(count, [&](size_t i) {
      normalise_row(buffers_->hidden + row_of[i] * config.dim, vector(context_.weights->output_norm),
                    vector(context_.weights->output_norm_bias), buffers_->final_normed.floats(i));
      buffers_->final_normed.store_forms(*context_.kernels, forms_of({&head}), i, config.dim);
    });
    products_ = {{.matrix = &head,
                  .x = &buffers_->final_normed,
                  .tokens = count,
                  .out = buffers_->logits,
                  .out_stride = config.vocab}};
    GANGLION_RETURN_IF_ERROR(context_.multiplier->run(products_));
    for (size_t i = 0; i < count; ++i) {
      const std::span<float> logits(buffers_->logits + i * config.vocab, config.vocab);
      if (config.logit_scale != 1) {
        for (float& value : logits) value *= config.logit_scale;
      }
      if (config.final_softcap > 0) {
        for (float& value : logits) value = config.final_softcap * std::tanh(value / config.final_softcap);
      }
      if (row_of[i] + 1 == rows.size()) {
        sink->hidden(config.layers.size(), {buffers_->final_normed.floats(i), config.dim});
      }
      sink->logits(row_of[i], logits);
    }
  }
  return base::ok_status();
}

}  // namespace ganglion::engine

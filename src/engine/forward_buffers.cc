#include "engine/forward_buffers.h"

#include <algorithm>

namespace ganglion::engine {

using model::LayerWeights;
using model::MatrixRef;
using model_config::LayerConfig;
using model_config::ModelConfig;

namespace {

// The forms that any layer's matrices of the given kinds read.
template <typename... Members>
FormSet forms_in_layers(const model::WeightMap& weights, Members... members) {
  FormSet forms;
  for (const LayerWeights& layer : weights.layers) {
    for (const MatrixRef* matrix : {&(layer.*members)...}) {
      if (matrix->present()) forms.add(matrix->type);
    }
  }
  return forms;
}

// Groups that passes of most rows have sums for.
constexpr size_t kGroupsAtOnce = 8;

}  // namespace

ForwardPass::Buffers::Sparse ForwardPass::Buffers::lay_out_sparse(const ForwardContext& context,
                                                                  ScratchAllocator& scratch) {
  const ModelConfig& config = *context.config;
  const auto& moe = config.moe;
  Sparse s;
  s.rows = std::min(context.chunk, kSparseRows);
  size_t units = 1;
  size_t neurons = 0;
  size_t rank = 0;
  for (const LayerWeights& layer : context.weights->layers) {
    if (!layer.bundle.present()) continue;
    neurons = std::max<size_t>(neurons, layer.bundle.rows.rows);
    if (!layer.bundle.predict_low.present()) continue;
    rank = std::max<size_t>(rank, layer.bundle.predict_low.rows);
  }
  if (moe.expert_count > 0) units = std::min<size_t>(moe.expert_count, s.rows * moe.used_count);
  s.capacity = units * neurons;
  const auto prediction = [&](size_t of_units, size_t rows) {
    Prediction p = {.units = scratch.take<Unit>(of_units), .rows = rows};
    if (rank > 0) p.low = scratch.take<float>(of_units * rows * rank);
    p.scores = scratch.take<float>(of_units * rows * neurons);
    return p;
  };
  s.now = prediction(units, s.rows);
  s.ahead = prediction(moe.expert_count > 0 ? moe.used_count : 1, 1);
  s.unit_weight = scratch.take<float>(units * s.rows);
  if (rank > 0) s.rank_rows = scratch.take<const uint8_t*>(rank);
  s.masks = scratch.take<uint32_t>(s.capacity);
  s.tile_begin = scratch.take<uint32_t>(units * base::ceil_div(neurons, kNeuronTile) + 1);
  s.active = scratch.take<Active>(s.capacity);
  s.values = scratch.take<float>(s.capacity * s.rows);
  s.waiting = scratch.take<uint32_t>(s.capacity);
  s.wanted = scratch.take<uint32_t>(neurons + 1);
  if (neurons > 0) {
    // A pass of one row has a sum for each group, one of most rows a few.
    const size_t groups = Buffers::group_of(static_cast<uint32_t>(neurons - 1)) + 1;
    const size_t used = moe.expert_count > 0 ? moe.used_count : 1;
    s.groups = scratch.take<Group>(units * (groups + 1));
    s.tasks = scratch.take<uint32_t>(units * (groups + 1) + 1);
    s.sum_rows = std::max(groups * used, kGroupsAtOnce * s.rows);
    s.sums = scratch.take<float>(s.sum_rows * config.dim);
  }
  if (context.with_device) {
    s.hot_out = scratch.take<float>(units * s.rows * config.dim);
    s.hot_sets = scratch.take<uint32_t>(units);
  }
  return s;
}

ForwardPass::Buffers ForwardPass::lay_out(const ForwardContext& context, ScratchAllocator& scratch) {
  using W = LayerWeights;
  const ModelConfig& config = *context.config;
  const model::WeightMap& weights = *context.weights;
  const auto& moe = config.moe;
  const auto& mla = config.mla;
  const size_t rows = context.chunk;
  size_t heads = 0;
  size_t qkv = 0;
  size_t ffn = std::max(moe.expert_count > 0 ? moe.expert_ffn : 0, moe.shared_ffn);
  for (const LayerConfig& layer : config.layers) {
    heads = std::max<size_t>(heads, layer.heads);
    qkv = std::max(qkv, (size_t{layer.heads} + layer.kv_heads) * config.key_dims +
                            size_t{layer.kv_heads} * config.value_dims);
    if (!layer.moe) ffn = std::max<size_t>(ffn, layer.ffn);
  }
  Buffers b;
  b.embedding_stride =
      async_io::kIoAlignment +
      base::round_up(base::row_bytes(context.embedding_type, config.dim), async_io::kIoAlignment);
  scratch.align(async_io::kIoAlignment);
  b.embedding_rows = scratch.take<uint8_t>(rows * b.embedding_stride);
  b.hidden = scratch.take<float>(rows * config.dim);
  FormSet normed = forms_in_layers(weights, &W::q, &W::k, &W::v, &W::qkv, &W::q_a, &W::kv_a);
  for (const LayerWeights& layer : weights.layers) normed.add(ffn_forms(layer));
  b.normed = ActivationRows(scratch, rows, config.dim, normed);
  b.qkv_stride = qkv;
  b.qkv = scratch.take<float>(rows * qkv);
  b.attended = ActivationRows(scratch, rows, heads * (mla.kv_rank > 0 ? mla.value_dims : config.value_dims),
                              forms_in_layers(weights, &W::o));
  b.projected = scratch.take<float>(rows * config.dim);
  b.ffn_rows = std::max<size_t>(rows, moe.used_count);
  b.ffn = ActivationRows(scratch, b.ffn_rows, ffn, forms_in_layers(weights, &W::down, &W::expert_down));
  b.up = scratch.take<float>(b.ffn_rows * b.ffn.float_stride());
  if (config.fused_gate_up) b.gate_up = scratch.take<float>(rows * 2 * ffn);
  b.angle_stride = std::max(config.rope.dims, config.rope_local.dims);
  b.angles = scratch.take<float>(rows * b.angle_stride);
  b.angles_local = scratch.take<float>(rows * b.angle_stride);
  FormSet head_forms;
  head_forms.add(weights.output.type);
  b.final_normed = ActivationRows(scratch, context.logit_rows, config.dim, head_forms);
  b.logits = scratch.take<float>(context.logit_rows * config.vocab);
  if (moe.expert_count > 0) {
    b.router_logits = scratch.take<float>(rows * moe.expert_count);
    b.router_scratch = scratch.take<float>(rows * moe.expert_count);
    b.routed = scratch.take<model::Routed>(rows * moe.used_count);
    b.by_expert = scratch.take<uint32_t>(rows * moe.used_count);
    b.place_of = scratch.take<uint32_t>(rows * moe.used_count);
    b.expert_begin = scratch.take<uint32_t>(size_t{moe.expert_count} + 1);
    b.gathered = ActivationRows(scratch, b.ffn_rows, config.dim, normed);
    b.ahead_routed = scratch.take<model::Routed>(moe.used_count);
    b.expert_out = scratch.take<float>(b.ffn_rows * config.dim);
  }
  if (moe.expert_count > 0 || config.pack.present) {
    FormSet forms = forms_in_layers(weights, &W::router);
    for (const LayerWeights& layer : weights.layers) {
      if (layer.bundle.predict_low.present()) forms.add(layer.bundle.predict_low.type);
    }
    b.ahead = ActivationRows(scratch, 1, config.dim, forms);
  }
  if (config.pack.present) b.sparse = Buffers::lay_out_sparse(context, scratch);
  if (mla.kv_rank > 0) {
    b.q_low = ActivationRows(scratch, rows, mla.q_rank, forms_in_layers(weights, &W::q_b));
    b.q_full = scratch.take<float>(rows * heads * (mla.nope_dims + config.rope.dims));
    b.kv_low = scratch.take<float>(rows * (mla.kv_rank + config.rope.dims));
    b.q_nope = ActivationRows(scratch, rows * heads, mla.nope_dims, forms_in_layers(weights, &W::k_b));
    b.latent = ActivationRows(scratch, rows * heads, mla.kv_rank, forms_in_layers(weights, &W::v_b));
  }
  return b;
}

void ForwardPass::Buffers::sort_by_expert(size_t experts, size_t entries) {
  std::fill_n(expert_begin, experts + 1, 0U);
  for (size_t i = 0; i < entries; ++i) ++expert_begin[routed[i].expert + 1];
  for (size_t e = 0; e < experts; ++e) expert_begin[e + 1] += expert_begin[e];
  for (size_t i = 0; i < entries; ++i) {
    const uint32_t place = expert_begin[routed[i].expert]++;
    by_expert[place] = static_cast<uint32_t>(i);
    place_of[i] = place;
  }
  // The loop moved each beginning to its end, which is the next one's beginning.
  for (size_t e = experts; e > 0; --e) expert_begin[e] = expert_begin[e - 1];
  expert_begin[0] = 0;
}

}  // namespace ganglion::engine

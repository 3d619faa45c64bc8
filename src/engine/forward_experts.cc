// The mixture-of-experts part of the forward pass: routing, waves of experts, look-ahead.
#include <algorithm>

#include "engine/forward_buffers.h"

namespace ganglion::engine {

using base::Status;
using model::LayerWeights;
using model::MatrixRef;
using model_config::ModelConfig;

// routed [T][used]: experts of each row, ascending, with weights.
Status ForwardPass::route(size_t rows, size_t layer) {
  const ModelConfig& config = *context_.config;
  const LayerWeights& w = context_.weights->layers[layer];
  const size_t experts = config.moe.expert_count;
  products_ = {{.matrix = &w.router,
                .x = &buffers_->normed,
                .tokens = rows,
                .out = buffers_->router_logits,
                .out_stride = experts}};
  GANGLION_RETURN_IF_ERROR(context_.multiplier->run(products_));
  for_rows(rows, [&](size_t i) {
    float* logits = buffers_->router_logits + i * experts;
    add_bias(vector(w.router_bias), experts, logits);
    model::route(config.moe, {logits, experts}, vector(w.selection_bias),
                 {buffers_->router_scratch + i * experts, experts},
                 {buffers_->routed + i * config.moe.used_count, config.moe.used_count});
  });
  return base::ok_status();
}

void ForwardPass::set_routing_sink(RoutingSink* sink) {
  routing_sink_ = sink;
  reported_.resize(context_.config->moe.used_count);
}

void ForwardPass::report_routing(size_t rows, size_t layer) {
  const size_t used = reported_.size();
  for (size_t row = 0; row < rows; ++row) {
    for (size_t i = 0; i < used; ++i) reported_[i] = buffers_->routed[row * used + i].expert;
    routing_sink_->routed(row, layer, reported_);
  }
}

// Groups the entries of `routed` by expert, and says which experts this pass uses.
void ForwardPass::begin_experts(size_t rows, size_t layer) {
  const ModelConfig& config = *context_.config;
  buffers_->sort_by_expert(config.moe.expert_count, rows * config.moe.used_count);
  const LayerWeights& w = context_.weights->layers[layer];
  const bool bundled = w.bundle.present();
  for (uint32_t e = 0; e < config.moe.expert_count; ++e) {
    const bool used_now = buffers_->expert_begin[e] < buffers_->expert_begin[e + 1];
    if (used_now && !bundled) {
      context_.stream->use_expert(static_cast<uint32_t>(layer * config.moe.expert_count + e));
    } else if (!used_now && bundled) {
      skip_expert(w, e);
    }
  }
}

// Where experts are known before attention, what answers need of whole ones is read meanwhile.
void ForwardPass::read_routed(size_t rows, size_t layer) {
  const LayerWeights& w = context_.weights->layers[layer];
  if (w.bundle.present() && !exact_) return;
  begin_experts(rows, layer);
  if (!w.bundle.present() && rows <= kSparseRows) request_wave(w, 0, rows * context_.config->moe.used_count);
}

// projected [T][D] = sum over a row's experts, in ascending order. Rows are grouped by expert, so that each
// expert is used once per pass; groups are taken in waves that fit the buffers.
Status ForwardPass::expert_ffn(size_t rows, size_t layer) {
  const ModelConfig& config = *context_.config;
  const size_t used = config.moe.used_count;
  const size_t entries = rows * used;
  if (routing_sink_ != nullptr) report_routing(rows, layer);
  if (!config.moe.router_before_attention) begin_experts(rows, layer);
  const bool bundled = context_.weights->layers[layer].bundle.present();
  std::fill_n(buffers_->projected, rows * config.dim, 0.0F);
  size_t begin = 0;
  while (begin < entries) {
    // As many whole experts as the buffers hold rows for.
    size_t end = begin;
    while (end < entries) {
      const uint32_t expert = buffers_->routed[buffers_->by_expert[end]].expert;
      if (buffers_->expert_begin[expert + 1] - begin > buffers_->ffn_rows) break;
      if (bundled && end > begin) break;  // They are streamed expert by expert.
      end = buffers_->expert_begin[expert + 1];
    }
    GANGLION_RETURN_IF_ERROR(expert_wave(layer, begin, end, rows > kSparseRows && end == entries));
    if (rows > kSparseRows && !bundled) leave_experts(layer, begin, end);
    for_rows(rows, [&](size_t i) {
      for (size_t slot = i * used; slot < (i + 1) * used; ++slot) {
        const size_t place = buffers_->place_of[slot];
        if (place < begin || place >= end) continue;
        context_.kernels->add_scaled(buffers_->expert_out + (place - begin) * config.dim,
                                     buffers_->routed[slot].weight, config.dim,
                                     buffers_->projected + i * config.dim);
      }
    });
    begin = end;
  }
  return base::ok_status();
}

// More rows than answers have use nearly all experts of every layer: the next ones displace these, not what
// the cache has kept for answers.
void ForwardPass::leave_experts(size_t layer, size_t begin, size_t end) {
  for (size_t i = begin; i < end;) {
    const uint32_t expert = buffers_->routed[buffers_->by_expert[i]].expert;
    context_.stream->leave_expert(static_cast<uint32_t>(layer * context_.config->moe.expert_count + expert));
    i = buffers_->expert_begin[expert + 1];
  }
}

// The blocks of an expert that no row of this pass was routed to are not waited for.
void ForwardPass::skip_expert(const LayerWeights& w, uint32_t expert) {
  for (const MatrixRef* matrix : {&w.bundle.gates, &w.bundle.rows, &w.expert_down}) {
    if (!matrix->present()) continue;
    const neuron_store::BlockRange range = context_.multiplier->blocks(*matrix, expert);
    for (neuron_store::BlockId id = range.begin; id < range.end; ++id) context_.stream->skip(id);
  }
}

// Has all blocks of a wave read at once, so that the down matrices arrive while gate and up are computed -
// unless the cache is so small that they would displace each other.
void ForwardPass::request_wave(const LayerWeights& w, size_t begin, size_t end) {
  size_t blocks = 0;
  for (const bool count_only : {true, false}) {
    if (!count_only && 2 * blocks > context_.stream->expert_slots()) return;
    for (const MatrixRef* matrix : {&w.expert_gate, &w.expert_up, &w.expert_down}) {
      for (size_t i = begin; i < end;) {
        const uint32_t expert = buffers_->routed[buffers_->by_expert[i]].expert;
        const neuron_store::BlockRange range = context_.multiplier->blocks(*matrix, expert);
        blocks += range.end - range.begin;
        for (neuron_store::BlockId id = range.begin; !count_only && id < range.end; ++id)
          context_.stream->request(id);
        i = buffers_->expert_begin[expert + 1];
      }
    }
  }
}

// Guesses the experts of `layer` by its router on the present hidden state, which misses only the present
// layer's FFN, and has them read behind what is needed now.
Status ForwardPass::look_ahead(size_t layer) {
  const ModelConfig& config = *context_.config;
  if (layer >= config.layers.size() || !config.layers[layer].moe || config.moe.router_before_attention ||
      !look_ahead_.use() || context_.stream->expert_slots() == SIZE_MAX) {
    return base::ok_status();
  }
  const LayerWeights& w = context_.weights->layers[layer];
  const neuron_store::BlockRange router = context_.multiplier->blocks(w.router, 0);
  for (neuron_store::BlockId id = router.begin; id < router.end; ++id) {
    if (!context_.stream->is_resident(id))
      return base::ok_status();  // It would come out of the order of the pass.
  }
  guess_input(layer, forms_of({&w.router}));
  GANGLION_RETURN_IF_ERROR(guess_experts(layer));
  for (const MatrixRef* matrix : {&w.expert_gate, &w.expert_up, &w.expert_down}) {
    for (size_t i = 0; i < config.moe.used_count; ++i) {
      const neuron_store::BlockRange range =
          context_.multiplier->blocks(*matrix, buffers_->ahead_routed[i].expert);
      for (neuron_store::BlockId id = range.begin; id < range.end; ++id) context_.stream->request_ahead(id);
    }
  }
  return base::ok_status();
}

// ahead [1][D]: what the FFN of `layer` would read if the present layer's added nothing.
void ForwardPass::guess_input(size_t layer, FormSet forms) {
  const LayerWeights& w = context_.weights->layers[layer];
  normalise_row(buffers_->hidden, vector(w.ffn_norm), vector(w.ffn_norm_bias), buffers_->ahead.floats(0));
  buffers_->ahead.store_forms(*context_.kernels, forms, 0, context_.config->dim);
}

// ahead_routed: the experts that the router of `layer` chooses for `ahead`.
Status ForwardPass::guess_experts(size_t layer) {
  const ModelConfig& config = *context_.config;
  const LayerWeights& w = context_.weights->layers[layer];
  const size_t experts = config.moe.expert_count;
  products_ = {{.matrix = &w.router,
                .x = &buffers_->ahead,
                .tokens = 1,
                .out = buffers_->router_logits,
                .out_stride = experts}};
  GANGLION_RETURN_IF_ERROR(context_.multiplier->run(products_));
  add_bias(vector(w.router_bias), experts, buffers_->router_logits);
  model::route(config.moe, {buffers_->router_logits, experts}, vector(w.selection_bias),
               {buffers_->router_scratch, experts}, {buffers_->ahead_routed, config.moe.used_count});
  return base::ok_status();
}

// Has all experts of a layer read while those before it are computed: a prompt uses nearly all of them.
void ForwardPass::read_next_experts(size_t layer) {
  const ModelConfig& config = *context_.config;
  const size_t slots = context_.stream->expert_slots();
  if (layer >= config.layers.size() || !config.layers[layer].moe || slots == SIZE_MAX) return;
  const LayerWeights& w = context_.weights->layers[layer];
  next_blocks_.clear();
  for (uint32_t expert = 0; expert < config.moe.expert_count; ++expert) {
    for (const MatrixRef* matrix : {&w.expert_gate, &w.expert_up, &w.expert_down}) {
      const neuron_store::BlockRange range = context_.multiplier->blocks(*matrix, expert);
      for (neuron_store::BlockId id = range.begin; id < range.end; ++id) next_blocks_.push_back(id);
    }
  }
  // Room for the present layer's, these, and much that stays.
  if (4 * next_blocks_.size() > slots) return;
  context_.stream->read_next(next_blocks_, config.moe.expert_count);
}

// expert_out [end - begin][D]: the experts' outputs for the entries by_expert[begin, end).
Status ForwardPass::expert_wave(size_t layer, size_t begin, size_t end, bool read_next) {
  const ModelConfig& config = *context_.config;
  const LayerWeights& w = context_.weights->layers[layer];
  const size_t width = config.moe.expert_ffn;
  const size_t used = config.moe.used_count;
  for_rows(end - begin, [&](size_t i) {
    buffers_->gathered.copy_row(i, buffers_->normed, buffers_->by_expert[begin + i] / used);
  });
  const auto for_experts = [&](auto&& body) {
    for (size_t i = begin; i < end;) {
      const uint32_t expert = buffers_->routed[buffers_->by_expert[i]].expert;
      const size_t next = buffers_->expert_begin[expert + 1];
      body(expert, i - begin, next - i);
      i = next;
    }
  };
  const bool bundled = w.bundle.present();
  if (!bundled) request_wave(w, begin, end);
  if (read_next && !bundled) read_next_experts(layer + 1);
  if (single_row_ && !bundled) GANGLION_RETURN_IF_ERROR(look_ahead(layer + 1));
  products_.clear();
  for_experts([&](uint32_t expert, size_t at, size_t count) {
    add_gate_up({.gate = &w.expert_gate,
                 .up = &w.expert_up,
                 .bundle = bundled ? &w.bundle : nullptr,
                 .set = bundled ? context_.bundles->set_of(layer, expert) : 0,
                 .expert = expert,
                 .x = &buffers_->gathered,
                 .at = at,
                 .count = count});
  });
  GANGLION_RETURN_IF_ERROR(context_.multiplier->run(products_));
  const auto expert_vector = [&](const model::VectorRef& ref, uint32_t expert, size_t size) {
    return ref.present() ? vector(ref) + expert * size : nullptr;
  };
  products_.clear();
  for_experts([&](uint32_t expert, size_t at, size_t count) {
    activate(count, width, at, forms_of({&w.expert_down}), expert_vector(w.expert_gate_bias, expert, width),
             expert_vector(w.expert_up_bias, expert, width),
             bundled ? context_.orders[layer] + size_t{expert} * width : nullptr);
    products_.push_back({.matrix = &w.expert_down,
                         .slice = expert,
                         .x = &buffers_->ffn,
                         .first_row = at,
                         .tokens = count,
                         .out = buffers_->expert_out + at * config.dim,
                         .out_stride = config.dim});
  });
  GANGLION_RETURN_IF_ERROR(context_.multiplier->run(products_));
  for_experts([&](uint32_t expert, size_t at, size_t count) {
    for (size_t i = at; i < at + count; ++i) {
      add_bias(expert_vector(w.expert_down_bias, expert, config.dim), config.dim,
               buffers_->expert_out + i * config.dim);
    }
  });
  return base::ok_status();
}

}  // namespace ganglion::engine

// The sparse FFN of a pack: predict, look up, read what is missing, compute what is there, go on as the rest
// arrives.
//
// Stages of a neuron (PowerInfer-2 section 4.3): predicted -> its bundle read -> gate -> up (where the gate
// is positive) -> down. Where no predictor pays, all gates are computed instead. No stage waits for a whole
// matrix: one thread takes a cluster of neurons through all stages as their bundles arrive. The order of
// sums is fixed: each group of neurons (group_of) has a sum of its own, to which down rows are added in
// ascending order, and the groups' sums are added in ascending order, so that the result depends neither on
// timing nor on what was in memory.
//
// Which neurons contribute to a row is decided by the pack's predictor and thresholds and that row alone;
// with a device (forward_hot.cc), hot neurons do so wherever their gates are open.
#include <algorithm>
#include <array>
#include <bit>

#include "engine/forward_buffers.h"

namespace ganglion::engine {

using base::Status;
using model::BundleRef;
using model::LayerWeights;
using model_config::ModelConfig;

namespace {
// Neurons that a thread takes through all stages at a time: a cluster. Few enough for the translations of
// their addresses to stay in the processor's first table.
constexpr size_t kClusterNeurons = 64;
// Clusters that a thread takes at once, while much is left.
constexpr size_t kClustersAtOnce = 4;
// Rows that kernels do not ask for themselves, the first of a call: the call before asks for them.
constexpr size_t kFirstRows = 2;
// Elements of the output whose sums a thread adds at a time.
constexpr size_t kSumPart = 512;

constexpr auto kOnes = [] {
  std::array<float, kClusterNeurons> ones;
  ones.fill(1);
  return ones;
}();

void prefetch(const uint8_t* data, size_t bytes) {
  for (size_t at = 0; at < bytes; at += 64) __builtin_prefetch(data + at);
}
}  // namespace

// projected [S][D] = sum over predicted neurons, ascending, of act(gate x) * (up x) * down row.
Status ForwardPass::sparse_ffn(size_t rows, size_t layer) {
  const ModelConfig& config = *context_.config;
  Buffers::Sparse& s = buffers_->sparse;
  neuron_stream::BundleStream& bundles = *context_.bundles;
  std::fill_n(buffers_->projected, rows * config.dim, 0.0F);
  choose_units(rows, layer);
  const size_t first = begin_hot(rows);
  const BundleRef& bundle = context_.weights->layers[layer].bundle;
  if (!all_neurons_ || bundle.gates.present())
    GANGLION_RETURN_IF_ERROR(predict(s.now, buffers_->normed, rows, layer, first));
  bundles.begin_layer(layer);
  list_active(rows, layer);
  if (context_.hot != nullptr) context_.hot->count_ahead();
  GANGLION_RETURN_IF_ERROR(request_missing());
  GANGLION_RETURN_IF_ERROR(compute_active(rows, layer));
  return context_.hot == nullptr ? base::ok_status() : finish_hot(rows, layer);
}

// Computes the listed neurons, as their bundles are there, and adds them up.
Status ForwardPass::compute_active(size_t rows, size_t layer) {
  Buffers::Sparse& s = buffers_->sparse;
  neuron_stream::BundleStream& bundles = *context_.bundles;
  for (;;) {
    if (context_.hot != nullptr) context_.hot->pump();
    if (context_.sparse_parts < SparseParts::kClusterPipeline)
      GANGLION_RETURN_IF_ERROR(bundles.wait_for_requested());
    compute_ready(rows, layer);
    if (s.added == s.group_count) return base::ok_status();
    if (s.waiting_count > 0) {
      GANGLION_RETURN_IF_ERROR(bundles.poll(true));
      continue;
    }
    // Everything that staging held has been used: room for the rest.
    GANGLION_RETURN_IF_ERROR(bundles.recycle_present());
    const size_t before = s.requested;
    GANGLION_RETURN_IF_ERROR(request_missing());
    GANGLION_CHECK(s.requested > before);
  }
}

// The experts that rows are routed to, ascending; a dense FFN is one expert of weight 1.
void ForwardPass::choose_units(size_t rows, size_t layer) {
  const ModelConfig& config = *context_.config;
  Buffers::Sparse& s = buffers_->sparse;
  const uint32_t all = static_cast<uint32_t>((uint64_t{1} << rows) - 1);
  if (!config.layers[layer].moe) {
    s.now.unit_count = 1;
    s.now.units[0] = {.expert = 0, .set = context_.bundles->set_of(layer, 0), .rows = all};
    std::fill_n(s.unit_weight, rows, 1.0F);
    return;
  }
  const size_t used = config.moe.used_count;
  s.now.unit_count = 0;
  for (uint32_t e = 0; e < config.moe.expert_count; ++e) {
    uint32_t mask = 0;
    float* weight = s.unit_weight + s.now.unit_count * s.rows;
    for (size_t slot = 0; slot < rows * used; ++slot) {
      if (buffers_->routed[slot].expert != e) continue;
      mask |= 1U << (slot / used);
      weight[slot / used] = buffers_->routed[slot].weight;
    }
    if (mask == 0) continue;
    s.now.units[s.now.unit_count++] = {.expert = e, .set = context_.bundles->set_of(layer, e), .rows = mask};
  }
}

// active: the neurons that are predicted, or whose gates are open, or (in passes that take all neurons, and
// where recall is measured) all that can contribute, ascending, with their bundles where they are in memory.
void ForwardPass::list_active(size_t rows, size_t layer) {
  const BundleRef& bundle = context_.weights->layers[layer].bundle;
  Buffers::Sparse& s = buffers_->sparse;
  const size_t neurons = bundle.rows.rows;
  const size_t tiles = base::ceil_div(neurons, Buffers::kNeuronTile);
  const auto for_tiles = [&](auto&& body) {
    context_.threads->parallel_for(s.now.unit_count * tiles, 1, [&](size_t begin, size_t end, int) {
      for (size_t tile = begin; tile < end; ++tile) {
        const size_t first = tile % tiles * Buffers::kNeuronTile;
        body(tile, tile / tiles, first, std::min(neurons, first + Buffers::kNeuronTile));
      }
    });
  };
  for_tiles([&](size_t tile, size_t u, size_t first, size_t last) {
    uint32_t* masks = s.masks + u * neurons;
    uint32_t count = 0;
    std::fill(masks + first, masks + last, 0U);
    // Those that are predicted, or whose gates are open, of the neurons that are this thread's.
    const Unit& unit = s.now.units[u];
    const bool predicted = bundle.predict_low.present();
    const size_t hot_end = std::clamp<size_t>(unit.hot, first, last);
    const size_t begin = unit.hot_here && !predicted ? first : hot_end;
    const size_t end = unit.cold_here ? last : hot_end;
    // Gates that are known to be closed contribute nothing, where none are left out.
    const bool all =
        (all_neurons_ && (predicted || bundle.gate_threshold.present())) || (recall_ != nullptr && predicted);
    if (all && begin < end) std::fill(masks + begin, masks + end, unit.rows);
    for (size_t t = 0; t < rows && !all; ++t) {
      const uint32_t bit = 1U << t & unit.rows;
      const float* scores = s.now.scores + (u * s.rows + t) * neurons;
      if (predicted) {
        const float* threshold = vector(bundle.threshold) + unit.expert * neurons;
        for (size_t p = begin; p < end; ++p) masks[p] |= scores[p] > threshold[p] ? bit : 0;
      } else {
        const OpenGates open = context_.open_gates[layer];
        for (size_t p = begin; p < end; ++p) masks[p] |= open(scores[p]) ? bit : 0;
      }
    }
    if (unit.hot_here && predicted) std::fill(masks + first, masks + hot_end, unit.rows);
    for (size_t p = first; p < last; ++p) count += masks[p] != 0 ? 1 : 0;
    s.tile_begin[tile + 1] = count;
  });
  s.tile_begin[0] = 0;
  for (size_t tile = 0; tile < s.now.unit_count * tiles; ++tile) s.tile_begin[tile + 1] += s.tile_begin[tile];
  s.active_count = s.tile_begin[s.now.unit_count * tiles];
  const size_t groups = Buffers::group_of(static_cast<uint32_t>(neurons - 1)) + 1;
  s.group_count = s.now.unit_count * groups;
  for_tiles([&](size_t tile, size_t u, size_t first, size_t last) {
    const Unit& unit = s.now.units[u];
    const uint32_t* masks = s.masks + u * neurons;
    uint32_t at = s.tile_begin[tile];
    for (auto p = static_cast<uint32_t>(first); p < last;) {
      const auto id = static_cast<uint32_t>(u * groups + Buffers::group_of(p));
      const uint32_t end = std::min(static_cast<uint32_t>(last), p + Buffers::group_size(p));
      uint32_t hot = 0;
      uint32_t ready = 0;
      const uint32_t begin = at;
      for (; p < end; ++p) {
        if (masks[p] == 0) continue;
        const bool stays = stays_in_memory(unit.set, p);
        s.active[at++] = {
            stays ? find(unit.set, p) : nullptr, static_cast<uint32_t>(u), p, masks[p], id, false};
        hot += p < unit.hot ? 1 : 0;
        ready += stays && p >= unit.hot ? 1 : 0;
      }
      s.groups[id] = {begin + hot, at, begin + hot, ready, static_cast<uint32_t>(u), false};
    }
  });
  if (context_.hot != nullptr) list_hot_groups();
  s.requested = s.waiting_count = 0;
  s.begun = s.added = 0;
}

// The hot neurons of a unit, which come first, are one more group.
void ForwardPass::list_hot_groups() {
  Buffers::Sparse& s = buffers_->sparse;
  uint32_t at = 0;
  for (uint32_t u = 0; u < s.now.unit_count; ++u) {
    while (at < s.active_count && s.active[at].unit < u) ++at;
    Buffers::Group& group = s.groups[s.group_count];
    group = {at, at, at, 0, u, true};
    for (; at < s.active_count && s.active[at].unit == u && buffers_->is_hot(s.active[at]); ++at) {
      s.active[at].group = static_cast<uint32_t>(s.group_count);
      group.ready += s.active[at].data != nullptr ? 1 : 0;
    }
    group.end = at;
    ++s.group_count;
  }
}

// Has the bundles read that are absent from `requested` on, as far as staging has room. Only then may those
// that are cached be used: making room displaces some.
Status ForwardPass::request_missing() {
  Buffers::Sparse& s = buffers_->sparse;
  neuron_stream::BundleStream& bundles = *context_.bundles;
  uint64_t prefix_uses = 0;
  uint64_t cache_uses = 0;
  uint64_t misses = 0;
  for (bool room = true; room && s.requested < s.active_count;) {
    const uint32_t u = s.active[s.requested].unit;
    const uint32_t set = s.now.units[u].set;
    size_t count = 0;
    size_t end = s.requested;
    for (; end < s.active_count && s.active[end].unit == u; ++end) {
      const Buffers::Active& neuron = s.active[end];
      if (neuron.data != nullptr) continue;
      if (!all_neurons_) bundles.touch(set, neuron.neuron);
      s.wanted[count] = neuron.neuron;
      count += bundles.find(set, neuron.neuron) == nullptr ? 1 : 0;
    }
    const size_t taken = bundles.request(set, {s.wanted, count});
    room = taken == count;
    for (; s.requested < end; ++s.requested) {
      Buffers::Active& neuron = s.active[s.requested];
      if (!room && neuron.neuron == s.wanted[taken]) break;
      if (neuron.data != nullptr) {
        ++prefix_uses;
        continue;
      }
      neuron.data = bundles.find(set, neuron.neuron);
      if (neuron.data != nullptr) {
        ++cache_uses;
        ++s.groups[neuron.group].ready;
      } else {
        ++misses;
        s.waiting[s.waiting_count++] = static_cast<uint32_t>(s.requested);
      }
    }
  }
  bundles.count_uses(prefix_uses, cache_uses, misses);
  return base::ok_status();
}

// values [entry][t] of up to kClusterNeurons neurons whose bundles are in memory: all gates, then ups where a
// gate is open.
void ForwardPass::compute_cluster(size_t rows, size_t layer, std::span<const uint32_t> entries) {
  float gates[kClusterNeurons * kSparseRows];
  OpenGate open[kClusterNeurons];
  const bool known = context_.weights->layers[layer].bundle.gates.present();
  const size_t count = known ? take_gates(rows, layer, entries, gates, open)
                             : compute_gates(rows, layer, entries, gates, open);
  compute_ups(rows, layer, {open, count});
  if (recall_ != nullptr && !known && !all_neurons_) count_found(layer, entries);
  for (const uint32_t entry : entries) buffers_->sparse.active[entry].computed = true;
}

// The activated gates that list_active() has chosen by, which are all open.
size_t ForwardPass::take_gates(size_t rows, size_t layer, std::span<const uint32_t> entries, float* gates,
                               OpenGate* open) {
  const BundleRef& bundle = context_.weights->layers[layer].bundle;
  const Buffers::Sparse& s = buffers_->sparse;
  for (size_t i = 0; i < entries.size(); ++i) {
    const Buffers::Active& neuron = s.active[entries[i]];
    for (size_t t = 0; t < rows; ++t) {
      gates[t * kClusterNeurons + i] =
          s.now.scores[(neuron.unit * s.rows + t) * bundle.rows.rows + neuron.neuron];
    }
    open[i] = {entries[i], neuron.rows, gates + i};
  }
  if (bundle.gate_threshold.present()) {
    const auto silu = static_cast<size_t>(model_config::FfnActivation::kSilu);
    for (size_t t = 0; t < rows; ++t) {
      context_.kernels->gated_activation[silu](gates + t * kClusterNeurons, kOnes.data(), entries.size());
    }
  }
  return entries.size();
}

// gates [t][i] of entries [i]; lists those that are open for a row and returns how many they are.
size_t ForwardPass::compute_gates(size_t rows, size_t layer, std::span<const uint32_t> entries, float* gates,
                                  OpenGate* open) {
  const BundleRef& bundle = context_.weights->layers[layer].bundle;
  Buffers::Sparse& s = buffers_->sparse;
  const uint8_t* gate_rows[kClusterNeurons + kFirstRows];
  for (size_t i = 0; i < entries.size(); ++i) gate_rows[i] = s.active[entries[i]].data;
  for (size_t i = 0; i < kFirstRows; ++i)  // The first of the ups, most likely.
    gate_rows[entries.size() + i] =
        s.active[entries[std::min(i, entries.size() - 1)]].data + bundle.up_offset;
  multiply_rows(rows, bundle.rows.type, bundle, {gate_rows, entries.size()}, gates);
  const float* bias = vector(bundle.bias);
  for (size_t i = 0; bias != nullptr && i < entries.size(); ++i) {
    for (size_t t = 0; t < rows; ++t) gates[t * kClusterNeurons + i] += bias[s.active[entries[i]].neuron];
  }
  const float threshold = context_.config->ffn_threshold;
  size_t open_count = 0;
  for (size_t i = 0; i < entries.size(); ++i) {
    uint32_t mask = 0;
    for (size_t t = 0; t < rows; ++t) mask |= gates[t * kClusterNeurons + i] > threshold ? 1U << t : 0;
    mask &= s.active[entries[i]].rows;
    if (mask != 0) {
      open[open_count++] = {entries[i], mask, gates + i};
    } else {
      std::fill_n(s.values + entries[i] * s.rows, rows, 0.0F);
    }
  }
  return open_count;
}

// out [t][i], kClusterNeurons apart: rows of bundles times all rows of the FFN's input. Behind `weights` lie
// kFirstRows that are read next.
void ForwardPass::multiply_rows(size_t rows, base::TensorType type, const BundleRef& bundle,
                                std::span<const uint8_t* const> weights, float* out) const {
  const kernels::ActivationForm form = kernels::activation_form(type);
  const size_t row_bytes = base::row_bytes(type, bundle.rows.cols);
  for (size_t i = 0; i < std::min(kFirstRows, weights.size()); ++i) prefetch(weights[i], row_bytes);
  context_.kernels->matmul[static_cast<size_t>(type)]({.weights = nullptr,
                                                       .weight_stride = 0,
                                                       .rows = weights.size(),
                                                       .n = bundle.rows.cols,
                                                       .x = buffers_->normed.row(form, 0),
                                                       .x_stride = buffers_->normed.stride(form),
                                                       .tokens = rows,
                                                       .out = out,
                                                       .out_stride = kClusterNeurons,
                                                       .scattered = weights.data(),
                                                       .more = kFirstRows});
}

// values [entry][t] = act(gate) * up * the expert's weight, of open gates. Without a gate ups are 1.
void ForwardPass::compute_ups(size_t rows, size_t layer, std::span<const OpenGate> open) {
  const BundleRef& bundle = context_.weights->layers[layer].bundle;
  Buffers::Sparse& s = buffers_->sparse;
  const bool rectified = context_.config->activation == model_config::FfnActivation::kDRelu;
  if (open.empty()) return;
  const uint8_t* up_rows[kClusterNeurons + kFirstRows];
  float ups[kClusterNeurons * kSparseRows];
  if (context_.config->ungated) std::fill_n(ups, kClusterNeurons * rows, 1.0F);
  for (size_t i = 0; i < open.size(); ++i) up_rows[i] = s.active[open[i].entry].data + bundle.up_offset;
  for (size_t i = 0; i < kFirstRows; ++i)
    up_rows[open.size() + i] = s.active[open[std::min(i, open.size() - 1)].entry].data + bundle.down_offset;
  if (!context_.config->ungated) multiply_rows(rows, bundle.up_type, bundle, {up_rows, open.size()}, ups);
  for (size_t i = 0; i < open.size(); ++i) {
    float* values = s.values + open[i].entry * s.rows;
    std::fill_n(values, rows, 0.0F);
    const Buffers::Active& neuron = s.active[open[i].entry];
    // The weight of hot ones is taken into their sum, as the device's.
    const float* weight = buffers_->is_hot(neuron) ? kOnes.data() : s.unit_weight + neuron.unit * s.rows;
    for (uint32_t left = open[i].rows; left != 0; left &= left - 1) {
      const auto t = static_cast<size_t>(std::countr_zero(left));
      const float up = ups[t * kClusterNeurons + i];
      values[t] = open[i].gate[t * kClusterNeurons] * (rectified ? std::max(up, 0.0F) : up) * weight[t];
    }
  }
}

// Computes the entries whose bundles have arrived, and adds the groups that are complete.
void ForwardPass::compute_ready(size_t rows, size_t layer) {
  Buffers::Sparse& s = buffers_->sparse;
  size_t still = 0;
  for (size_t w = 0; w < s.waiting_count; ++w) {
    Buffers::Active& neuron = s.active[s.waiting[w]];
    neuron.data = find(s.now.units[neuron.unit].set, neuron.neuron);
    if (neuron.data != nullptr) {
      ++s.groups[neuron.group].ready;
    } else {
      s.waiting[still++] = s.waiting[w];
    }
  }
  s.waiting_count = still;
  // As many groups at once as there are sums.
  const size_t window = s.sum_rows / rows;
  for (;;) {
    list_tasks(std::min(s.group_count, s.added + window));
    submit_beside(s.task_count, kClustersAtOnce, [&](size_t begin, size_t end) {
      compute_groups(rows, layer, window, s.tasks[begin], s.tasks[end]);
    });
    while (s.begun < s.group_count && s.begun < s.added + window &&
           s.groups[s.begun].done == s.groups[s.begun].end) {
      ++s.begun;
    }
    if (s.begun < s.group_count && s.begun < s.added + window) return;
    add_sums(rows, window);
    if (s.added == s.group_count) return;
  }
}

// tasks: groups before `end` with neurons to compute, in runs of about a cluster.
void ForwardPass::list_tasks(size_t end) {
  Buffers::Sparse& s = buffers_->sparse;
  s.task_count = 0;
  size_t in_task = kClusterNeurons;
  for (size_t g = s.begun; g < end; ++g) {
    const size_t ready = s.groups[g].ready;
    if (ready == 0) continue;
    if (in_task + ready > kClusterNeurons) {
      s.tasks[s.task_count++] = static_cast<uint32_t>(g);
      in_task = 0;
    }
    in_task += ready;
    s.tasks[s.task_count] = static_cast<uint32_t>(g + 1);
  }
}

// One thread's part: gates, ups and down rows of what is there of groups [first, last), cluster by cluster.
void ForwardPass::compute_groups(size_t rows, size_t layer, size_t window, size_t first, size_t last) {
  Buffers::Sparse& s = buffers_->sparse;
  uint32_t entries[kClusterNeurons];
  size_t count = 0;
  size_t g = first;
  const auto compute = [&](size_t end) {
    if (count > 0) compute_cluster(rows, layer, {entries, count});
    count = 0;
    for (; g < end; ++g) add_down_rows(rows, layer, window, g);
  };
  for (size_t i = first; i < last; ++i) {
    Buffers::Group& group = s.groups[i];
    for (uint32_t e = group.done; group.ready > 0 && e < group.end; ++e) {
      if (s.active[e].computed || s.active[e].data == nullptr) continue;
      entries[count++] = e;
      __builtin_prefetch(s.active[e].data);  // The translation of its address takes longest.
      --group.ready;
      if (count == kClusterNeurons) {
        compute(i);
        add_down_rows(rows, layer, window, i);
      }
    }
  }
  compute(last);
}

// The group's sum [rows][D] += the down rows of its computed entries, up to the first that is not.
void ForwardPass::add_down_rows(size_t rows, size_t layer, size_t window, size_t index) {
  const BundleRef& bundle = context_.weights->layers[layer].bundle;
  Buffers::Sparse& s = buffers_->sparse;
  Buffers::Group& group = s.groups[index];
  const size_t dim = context_.config->dim;
  const kernels::DownAxpyFn add = context_.kernels->down_axpy[static_cast<size_t>(bundle.down_type)];
  float* sums = group.hot ? s.hot_out + group.unit * s.rows * dim : s.sums + index % window * rows * dim;
  if (group.done == group.begin && !group.hot) std::fill_n(sums, rows * dim, 0.0F);
  while (group.done < group.end && s.active[group.done].computed) {
    const uint32_t begin = group.done;
    while (group.done < group.end && group.done < begin + kClusterNeurons && s.active[group.done].computed)
      ++group.done;
    for (size_t t = 0; t < rows; ++t) {
      float weights[kClusterNeurons];
      const uint8_t* down_rows[kClusterNeurons + kFirstRows];
      size_t count = 0;
      for (uint32_t e = begin; e < group.done; ++e) {
        weights[count] = s.values[e * s.rows + t];
        down_rows[count] = s.active[e].data + bundle.down_offset;
        count += weights[count] != 0 ? 1 : 0;
      }
      if (count == 0) continue;
      size_t more = 0;  // The next cluster's gates.
      while (more < kFirstRows && group.done + more < s.active_count &&
             s.active[group.done + more].data != nullptr) {
        down_rows[count + more] = s.active[group.done + more].data;
        ++more;
      }
      add({.weights = weights,
           .rows = down_rows,
           .count = count,
           .begin = 0,
           .n = dim,
           .out = sums + t * dim,
           .more = more});
    }
  }
}

// projected [S][D] += the sums of the groups that were begun, all complete, ascending. After the last ones,
// this thread first lets go of the bundles, while the others add.
void ForwardPass::add_sums(size_t rows, size_t window) {
  Buffers::Sparse& s = buffers_->sparse;
  const size_t dim = context_.config->dim;
  const size_t parts = base::ceil_div(dim, kSumPart);
  bool to_retire = s.begun == s.group_count;
  const auto retire = [&] {
    if (to_retire) context_.bundles->retire();
    to_retire = false;
  };
  context_.threads->parallel_for(rows * parts, 1, [&](size_t first, size_t last, int thread) {
    if (thread == 0) retire();
    for (size_t task = first; task < last; ++task) {
      const size_t column = task % parts * kSumPart;
      const size_t at = task / parts * dim + column;
      const size_t n = std::min(kSumPart, dim - column);
      for (size_t g = s.added; g < s.begun; ++g) {
        if (s.groups[g].hot || s.groups[g].begin == s.groups[g].end) continue;
        context_.kernels->add_scaled(s.sums + g % window * rows * dim + at, 1, n, buffers_->projected + at);
      }
    }
  });
  retire();
  s.added = s.begun;
}

}  // namespace ganglion::engine

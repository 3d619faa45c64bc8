// Which neurons of a packed layer a token is likely to use: the scores of predictors, and, while that pays, a
// guess before the layer's attention, during which their bundles are then read.
#include <algorithm>
#include <bit>
#include <cmath>

#include "engine/forward_buffers.h"

namespace ganglion::engine {

using base::Status;
using model::BundleRef;
using model::LayerWeights;
using model::MatrixRef;
using model_config::ModelConfig;

// scores [U][S][F] of the predictor on x for neurons from `first` on, or, without one, the gates of all with
// their biases, which thresholds of predictors hold.
Status ForwardPass::predict(const Prediction& p, const ActivationRows& x, size_t rows, size_t layer,
                            size_t first) {
  const LayerWeights& w = context_.weights->layers[layer];
  const BundleRef& bundle = w.bundle;
  const bool predicted = bundle.predict_low.present();
  const MatrixRef& matrix = predicted ? bundle.predict_low : bundle.gates;
  products_.clear();
  for (size_t u = 0; u < p.unit_count; ++u) {
    products_.push_back({.matrix = &matrix,
                         .slice = p.units[u].expert,
                         .x = &x,
                         .tokens = rows,
                         .out = (predicted ? p.low : p.scores) + u * p.rows * matrix.rows,
                         .out_stride = matrix.rows});
  }
  GANGLION_RETURN_IF_ERROR(context_.multiplier->run(products_));
  if (bundle.rectified) {
    for (size_t i = 0; i < p.unit_count * p.rows * matrix.rows; ++i) p.low[i] = std::max(p.low[i], 0.0F);
  }
  if (predicted) return score(p, rows, layer, first);
  if (bundle.bias.present())  // A dense FFN, which is one unit.
    for_rows(rows, [&](size_t t) { add_bias(vector(bundle.bias), matrix.rows, p.scores + t * matrix.rows); });
  return base::ok_status();
}

// scores [U][S][F] of neurons from `first` on: sum over the rank of low [U][S][rank] times predict_out
// [E][rank][F].
Status ForwardPass::score(const Prediction& p, size_t rows, size_t layer, size_t first) {
  const BundleRef& bundle = context_.weights->layers[layer].bundle;
  const uint8_t** rank_rows = buffers_->sparse.rank_rows;
  const size_t neurons = bundle.rows.rows;
  const size_t tiles = base::ceil_div(neurons - first, Buffers::kNeuronTile);
  const auto type =
      bundle.predict_out.type == base::TensorType::kQ4_0 ? kernels::DownType::kQ4 : kernels::DownType::kQ8;
  const size_t row_bytes = kernels::down_row_bytes(type, neurons);
  const kernels::DownAxpyFn add = context_.kernels->down_axpy[static_cast<size_t>(type)];
  for (size_t u = 0; u < p.unit_count; ++u) {
    for (size_t t = 0; t < rows; ++t)
      std::fill_n(p.scores + (u * p.rows + t) * neurons + first, neurons - first, 0.0F);
    // Rows of the rank ascend through the blocks; each is there, or waited for.
    const neuron_store::BlockRange range = context_.multiplier->blocks(bundle.predict_out, p.units[u].expert);
    size_t k = 0;
    for (neuron_store::BlockId id = range.begin; id < range.end; ++id) {
      const uint8_t* data;
      while ((data = context_.stream->try_pin(id)) == nullptr)
        GANGLION_RETURN_IF_ERROR(context_.stream->wait(id));
      const size_t count = context_.store->block(id).row_count;
      for (size_t i = 0; i < count; ++i) rank_rows[i] = data + i * row_bytes;
      submit_beside(tiles, 1, [&](size_t begin, size_t end) {
        for (size_t tile = begin; tile < end; ++tile) {
          const size_t at = first + tile * Buffers::kNeuronTile;
          for (size_t t = 0; t < rows; ++t) {  // While the tile's rows are in cache.
            add({.weights = p.low + (u * p.rows + t) * bundle.predict_low.rows + k,
                 .rows = rank_rows,
                 .count = count,
                 .begin = at,
                 .n = std::min(Buffers::kNeuronTile, neurons - at),
                 .out = p.scores + (u * p.rows + t) * neurons + at});
          }
        }
      });
      context_.stream->unpin(id);
      k += count;
    }
  }
  return base::ok_status();
}

void ForwardPass::set_recall_sink(std::vector<NeuronRecall>* layers) {
  recall_ = layers;
  if (layers != nullptr) layers->resize(context_.config->layers.size());
}

// Counts what fired and what of it was predicted, and takes back what was not.
void ForwardPass::count_found(size_t layer, std::span<const uint32_t> entries) {
  const BundleRef& bundle = context_.weights->layers[layer].bundle;
  const Buffers::Sparse& s = buffers_->sparse;
  NeuronRecall seen;
  for (const uint32_t entry : entries) {
    const Buffers::Active& neuron = s.active[entry];
    const size_t number = s.now.units[neuron.unit].expert * bundle.rows.rows + neuron.neuron;
    const float threshold = vector(bundle.threshold)[number];
    for (uint32_t left = neuron.rows; left != 0; left &= left - 1) {
      const auto t = static_cast<size_t>(std::countr_zero(left));
      float& value = s.values[entry * s.rows + t];
      const double mass = std::abs(static_cast<double>(value));
      const bool predicted =
          s.now.scores[(neuron.unit * s.rows + t) * bundle.rows.rows + neuron.neuron] > threshold;
      seen.fired += value != 0 ? 1 : 0;
      seen.mass += mass;
      seen.predicted += predicted ? 1 : 0;
      seen.found += predicted && value != 0 ? 1 : 0;
      seen.found_mass += predicted ? mass : 0;
      if (!predicted) value = 0;
    }
  }
  const std::lock_guard<std::mutex> turn(recall_mutex_);
  NeuronRecall& sum = (*recall_)[layer];
  sum.fired += seen.fired;
  sum.found += seen.found;
  sum.predicted += seen.predicted;
  sum.mass += seen.mass;
  sum.found_mass += seen.found_mass;
}

// Whether the layer's router and predictors are in memory: else they would come out of the pass's order.
bool ForwardPass::can_look_ahead(size_t layer) const {
  const ModelConfig& config = *context_.config;
  if (context_.sparse_parts < SparseParts::kAll || layer >= config.layers.size()) return false;
  const LayerWeights& w = context_.weights->layers[layer];
  if (!w.bundle.predict_low.present()) return false;
  const auto resident = [&](const MatrixRef& matrix) {
    for (uint32_t slice = 0; matrix.present() && slice < matrix.slices; ++slice) {
      const neuron_store::BlockRange range = context_.multiplier->blocks(matrix, slice);
      for (neuron_store::BlockId id = range.begin; id < range.end; ++id) {
        if (!context_.stream->is_resident(id)) return false;
      }
    }
    return true;
  };
  return resident(w.bundle.predict_low) && resident(w.bundle.predict_out) &&
         (!config.layers[layer].moe || resident(w.router));
}

// Guesses the layer's experts and neurons from the hidden state before its attention, which is all that the
// guess misses (adjacent layers' FFN inputs, a whole layer apart, have cosines of 0.95 to 0.99: PowerInfer-2,
// Deja Vu), and has those read meanwhile that are absent.
Status ForwardPass::predict_ahead(size_t layer) {
  if (!single_row_ || all_neurons_ || !look_ahead_.use() || !can_look_ahead(layer)) return base::ok_status();
  const LayerWeights& w = context_.weights->layers[layer];
  neuron_stream::BundleStream& bundles = *context_.bundles;
  Prediction& p = buffers_->sparse.ahead;
  GANGLION_RETURN_IF_ERROR(guess_units(layer, &p));
  const uint32_t neurons = w.bundle.rows.rows;
  uint32_t least = neurons;
  for (size_t u = 0; u < p.unit_count; ++u) least = std::min(least, bundles.prefix(p.units[u].set).rows);
  if (least == neurons) return base::ok_status();
  GANGLION_RETURN_IF_ERROR(predict(p, buffers_->ahead, 1, layer, base::round_down(least, 32)));
  bundles.begin_layer(layer);
  Buffers::Sparse& s = buffers_->sparse;
  for (size_t u = 0; u < p.unit_count; ++u) {
    const float* threshold = vector(w.bundle.threshold) + size_t{p.units[u].expert} * neurons;
    const float* scores = p.scores + u * neurons;
    size_t count = 0;
    for (uint32_t n = bundles.prefix(p.units[u].set).rows; n < neurons; ++n) {
      s.wanted[count] = n;
      count += scores[n] > threshold[n] ? 1 : 0;
    }
    if (bundles.request_ahead(p.units[u].set, {s.wanted, count}) < count) break;
  }
  bundles.submit();
  return base::ok_status();
}

// ahead [1][D], as the layer's FFN would read it without the attention before it, and the experts for it.
Status ForwardPass::guess_units(size_t layer, Prediction* p) {
  const ModelConfig& config = *context_.config;
  const LayerWeights& w = context_.weights->layers[layer];
  guess_input(layer, forms_of({&w.router, &w.bundle.predict_low}));
  if (!config.layers[layer].moe) {
    p->unit_count = 1;
    p->units[0] = {.expert = 0, .set = context_.bundles->set_of(layer, 0), .rows = 1};
    return base::ok_status();
  }
  const bool known = config.moe.router_before_attention;
  if (!known) GANGLION_RETURN_IF_ERROR(guess_experts(layer));
  p->unit_count = config.moe.used_count;
  for (size_t i = 0; i < p->unit_count; ++i) {
    const uint32_t expert = (known ? buffers_->routed : buffers_->ahead_routed)[i].expert;
    p->units[i] = {.expert = expert, .set = context_.bundles->set_of(layer, expert), .rows = 1};
  }
  return base::ok_status();
}

}  // namespace ganglion::engine

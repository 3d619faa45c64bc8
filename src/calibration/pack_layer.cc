#include "calibration/pack_layer.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstring>

#include "base/units.h"
#include "format/bundle_checksum.h"

namespace ganglion::calibration {

using base::Result;
using base::Status;
using base::TensorType;
using kernels::DownType;

namespace {

constexpr uint32_t kPage = 4096;
constexpr uint32_t kRowAlignment = 16;
// Neurons whose down rows are transposed at once; a multiple of every block of a quantised type.
constexpr size_t kColumns = 1024;

/// One expert's three matrices as they stand in the source.
struct Matrices {
  std::vector<uint8_t> gate;
  std::vector<uint8_t> up;
  std::vector<uint8_t> down;
};

/// What the tensors of a layer collect over its experts.
struct LayerData {
  std::vector<uint8_t> low, out;
  std::vector<float> frequency;
  std::vector<int32_t> order;
  LayerThresholds thresholds;
};

class LayerWriter {
 public:
  LayerWriter(const PackedLayer& layer, const ModelSource& source, const FitOptions& options,
              const LayerSamples& samples, std::span<const float> frequency)
      : layer_(layer), source_(source), options_(options), samples_(samples), frequency_(frequency) {}

  // Fits all experts first: predictors stand before bundles in the file.
  Status fit(LayerData* data) {
    GANGLION_ASSIGN_OR_RETURN(const std::vector<float> bias, source_.read_bias(ffn_));
    for (uint32_t e = 0; e < ffn_.experts; ++e) {
      Matrices m;
      GANGLION_RETURN_IF_ERROR(read_expert(e, &m));
      if (layer_.sparsified) {
        collect(unpredicted(e), e, data);
        continue;
      }
      std::vector<float> mlp_low, mlp_out;
      if (layer_.carried) GANGLION_RETURN_IF_ERROR(read_carried(&mlp_low, &mlp_out));
      std::vector<float> inputs;
      if (ffn_.experts > 1) inputs = inputs_of_expert(samples_, ffn_, e);
      Predictor p = fit_predictor({.kernels = &source_.kernels(),
                                   .threads = &source_.threads(),
                                   .gate_type = ffn_.gate->type,
                                   .up_type = (ffn_.up != nullptr ? ffn_.up : ffn_.gate)->type,
                                   .gate = m.gate,
                                   .up = m.up,
                                   .bias = bias,
                                   .rectified_up = source_.rectified_up(),
                                   .threshold = source_.config().ffn_threshold,
                                   .neurons = ffn_.neurons,
                                   .dim = ffn_.dim,
                                   .inputs = ffn_.experts > 1 ? inputs : samples_.inputs,
                                   .down_norm = down_norm_,
                                   .rank = layer_.rank,
                                   .mlp_low = mlp_low,
                                   .mlp_out = mlp_out,
                                   .recall = options_.recall});
      collect(p, e, data);
    }
    return base::ok_status();
  }

  // The gates of all experts as matrices, rows in pack order.
  Status gates(std::span<const int32_t> order, format::GgufWriter* writer) const {
    std::vector<uint8_t> gate;
    std::vector<uint8_t> out;
    for (uint32_t e = 0; e < ffn_.experts; ++e) {
      GANGLION_RETURN_IF_ERROR(source_.read_slice(*ffn_.gate, e, &gate));
      out.resize(gate.size());
      for (size_t i = 0; i < ffn_.neurons; ++i) {
        const auto neuron = static_cast<size_t>(order[e * size_t{ffn_.neurons} + i]);
        std::memcpy(out.data() + i * layer_.gate_bytes, gate.data() + neuron * layer_.gate_bytes,
                    layer_.gate_bytes);
      }
      GANGLION_RETURN_IF_ERROR(writer->write(out));
    }
    return base::ok_status();
  }

  // The biases of the gates, which are of one expert, in pack order.
  Status biases(std::span<const int32_t> order, format::GgufWriter* writer) const {
    GANGLION_ASSIGN_OR_RETURN(const std::vector<float> bias, source_.read_bias(ffn_));
    std::vector<float> out;
    for (const int32_t neuron : order) out.push_back(bias[static_cast<size_t>(neuron)]);
    return writer->write({reinterpret_cast<const uint8_t*>(out.data()), out.size() * sizeof(float)});
  }

  // The bundles of an expert in pack order, and their checksums.
  Status bundles(uint32_t e, std::span<const int32_t> order, format::GgufWriter* writer,
                 std::vector<int64_t>* checks) {
    Matrices m;
    GANGLION_RETURN_IF_ERROR(read_expert(e, &m));
    const size_t at_once = std::max<size_t>(1, base::kMiB / layer_.stride);
    std::vector<uint8_t> out;
    for (size_t first = 0; first < order.size(); first += at_once) {
      const size_t count = std::min(at_once, order.size() - first);
      out.assign(count * layer_.stride, 0);
      for (size_t i = 0; i < count; ++i) {
        const auto neuron = static_cast<size_t>(order[first + i]);
        uint8_t* to = out.data() + i * layer_.stride;
        uint8_t* up = to + layer_.up_offset();
        std::memcpy(to, m.gate.data() + neuron * layer_.gate_bytes, layer_.up_offset());
        if (ffn_.up != nullptr) std::memcpy(up, m.up.data() + neuron * layer_.up_bytes, layer_.up_bytes);
        std::memcpy(to + layer_.down_offset(), down_rows_.data() + neuron * layer_.down_bytes,
                    layer_.down_bytes);
        checks->push_back(static_cast<int64_t>(format::bundle_checksum({to, layer_.up_offset()})));
        checks->push_back(
            static_cast<int64_t>(format::bundle_checksum({up, layer_.up_bytes + layer_.down_bytes})));
      }
      GANGLION_RETURN_IF_ERROR(writer->write(out));
    }
    return base::ok_status();
  }

 private:
  Status read_expert(uint32_t e, Matrices* m) {
    GANGLION_RETURN_IF_ERROR(source_.read_slice(*ffn_.gate, e, &m->gate));
    if (ffn_.up != nullptr) GANGLION_RETURN_IF_ERROR(source_.read_slice(*ffn_.up, e, &m->up));
    GANGLION_RETURN_IF_ERROR(source_.read_slice(*ffn_.down, e, &m->down));
    transpose_down(m->down);
    return base::ok_status();
  }

  // The carried predictor, made to read the input after the norm. That is the input before it, times the
  // norm's weights, over a length that is above 0 and so changes all scores alike.
  Status read_carried(std::vector<float>* low, std::vector<float>* out) const {
    GANGLION_ASSIGN_OR_RETURN(*low, source_.read_floats(*ffn_.mlp_low));
    GANGLION_ASSIGN_OR_RETURN(*out, source_.read_floats(*ffn_.mlp_out));
    GANGLION_ASSIGN_OR_RETURN(const std::vector<float> norm, source_.read_floats(*ffn_.norm));
    constexpr float kLeast = 1e-6F;  // What a smaller weight takes away is lost.
    for (size_t i = 0; i < low->size(); ++i) {
      const float weight = norm[i % ffn_.dim];
      (*low)[i] = std::fabs(weight) < kLeast ? 0 : (*low)[i] / weight;
    }
    return base::ok_status();
  }

  // down_rows_ [F] and down_norm_ [F] from the rows [D] of F.
  void transpose_down(std::span<const uint8_t> down) {
    const size_t row_bytes = base::row_bytes(ffn_.down->type, ffn_.neurons);
    const auto dequantize = source_.kernels().dequantize[static_cast<size_t>(ffn_.down->type)];
    down_rows_.resize(size_t{ffn_.neurons} * layer_.down_bytes);
    down_norm_.resize(ffn_.neurons);
    source_.threads().parallel_for(
        base::ceil_div(ffn_.neurons, kColumns), 1, [&](size_t begin, size_t end, int) {
          std::vector<float> columns;
          std::vector<float> row(ffn_.dim);
          for (size_t part = begin; part < end; ++part) {
            const size_t first = part * kColumns;
            const size_t count = std::min(kColumns, ffn_.neurons - first);
            columns.resize(ffn_.dim * count);
            for (size_t d = 0; d < ffn_.dim; ++d) {
              dequantize(down.data() + d * row_bytes + base::row_bytes(ffn_.down->type, first), count,
                         columns.data() + d * count);
            }
            for (size_t i = 0; i < count; ++i) {
              double norm = 0;
              for (size_t d = 0; d < ffn_.dim; ++d) {
                row[d] = columns[d * count + i];
                norm += static_cast<double>(row[d]) * static_cast<double>(row[d]);
              }
              down_norm_[first + i] = static_cast<float>(std::sqrt(norm));
              kernels::quantize_down_row(options_.down_type, row.data(), ffn_.dim,
                                         down_rows_.data() + (first + i) * layer_.down_bytes);
            }
          }
        });
  }

  // What is known of an expert without fitting anything.
  Predictor unpredicted(uint32_t e) const {
    const std::span<const float> frequency = frequency_.subspan(size_t{e} * ffn_.neurons, ffn_.neurons);
    double all = 0;
    for (const float f : frequency) all += static_cast<double>(f);
    Predictor p;
    p.sigma.assign(ffn_.neurons, 0);
    p.value = p.offset = p.sigma;
    p.active = all / ffn_.neurons * ffn_.experts / ffn_.used;
    p.top_30 = top_30_share(frequency);
    return p;
  }

  // Appends an expert's predictor in pack order.
  void collect(const Predictor& p, uint32_t e, LayerData* data) const {
    const std::span<const float> frequency = frequency_.subspan(size_t{e} * ffn_.neurons, ffn_.neurons);
    std::vector<int32_t> order(ffn_.neurons);
    for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int32_t>(i);
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
      return frequency[static_cast<size_t>(a)] > frequency[static_cast<size_t>(b)];
    });
    data->low.insert(data->low.end(), p.low.begin(), p.low.end());
    const size_t before = data->out.size();
    const size_t row_bytes = kernels::down_row_bytes(kPredictorType, ffn_.neurons);
    data->out.resize(before + layer_.rank * row_bytes);
    std::vector<float> row(ffn_.neurons);
    for (size_t k = 0; k < layer_.rank; ++k) {
      for (size_t i = 0; i < order.size(); ++i)
        row[i] = p.out[k * ffn_.neurons + static_cast<size_t>(order[i])];
      kernels::quantize_down_row(kPredictorType, row.data(), row.size(),
                                 data->out.data() + before + k * row_bytes);
    }
    for (const int32_t neuron : order) {
      const auto n = static_cast<size_t>(neuron);
      data->frequency.push_back(frequency[n]);
      data->order.push_back(neuron);
    }
    data->thresholds.add_expert(p, order);
  }

  const PackedLayer& layer_;
  const FfnMatrices& ffn_ = layer_.ffn;
  const ModelSource& source_;
  const FitOptions& options_;
  const LayerSamples& samples_;
  std::span<const float> frequency_;
  std::vector<uint8_t> down_rows_;
  std::vector<float> down_norm_;
};

template <typename T>
std::span<const uint8_t> bytes_of(const std::vector<T>& values) {
  return {reinterpret_cast<const uint8_t*>(values.data()), values.size() * sizeof(T)};
}

}  // namespace

void LayerThresholds::add_expert(const Predictor& predictor, std::span<const int32_t> order) {
  for (const int32_t neuron : order) {
    offset_.push_back(predictor.offset[static_cast<size_t>(neuron)]);
    sigma_.push_back(predictor.sigma[static_cast<size_t>(neuron)]);
    value_.push_back(predictor.value[static_cast<size_t>(neuron)]);
  }
  experts_.emplace_back();
  Predictor& kept = experts_.back();
  std::copy(std::begin(predictor.levels), std::end(predictor.levels), kept.levels);
  kept.active = predictor.active;
  kept.top_30 = predictor.top_30;
}

std::vector<float> LayerThresholds::at(size_t level, float gate_threshold) const {
  std::vector<float> thresholds(sigma_.size(), -FLT_MAX);
  if (level >= kRecallLevels) return thresholds;
  const size_t neurons = sigma_.size() / experts_.size();
  for (size_t i = 0; i < thresholds.size(); ++i)
    thresholds[i] =
        threshold_for(sigma_[i], value_[i], experts_[i / neurons].levels[level].worth, gate_threshold) -
        offset_[i];
  return thresholds;
}

PackLayerReport LayerThresholds::report(size_t level) const {
  PackLayerReport mean;
  const double n = static_cast<double>(experts_.size());
  for (const Predictor& p : experts_) {
    Predictor::Level found = {.over_prediction = 1 / std::max(p.active, 1e-9)};  // Everything.
    if (level < kRecallLevels) found = p.levels[level];
    mean.active += p.active / n;
    mean.recall += found.recall / n;
    mean.mass_recall += found.mass_recall / n;
    mean.over_prediction += found.over_prediction / n;
    mean.top_30 += p.top_30 / n;
  }
  return mean;
}

Status check_rank(uint32_t rank) {
  if (rank % 32 == 0 && rank <= 4096) return base::ok_status();
  return Status(base::Code::kInvalidArgument,
                base::format("a predictor of rank %u - use a multiple of 32 up to 4096, or 0", rank));
}

Status check_recall(double recall) {
  if (recall > 0 && recall <= 1) return base::ok_status();
  return Status(base::Code::kInvalidArgument, "a recall is above 0 and at most 1");
}

PackedLayer lay_out_bundles(const FfnMatrices& ffn, DownType down_type, uint32_t rank) {
  PackedLayer layer;
  layer.ffn = ffn;
  layer.rank = rank;
  layer.gate_bytes = static_cast<uint32_t>(base::row_bytes(ffn.gate->type, ffn.dim));
  if (ffn.up != nullptr) layer.up_bytes = static_cast<uint32_t>(base::row_bytes(ffn.up->type, ffn.dim));
  layer.down_bytes = static_cast<uint32_t>(kernels::down_row_bytes(down_type, ffn.dim));
  const auto pages = static_cast<uint32_t>(base::round_up(layer.bundle_bytes(), kPage));
  const bool wasteful = (pages - layer.bundle_bytes()) * 5 > pages;
  layer.stride =
      wasteful ? static_cast<uint32_t>(base::round_up(layer.bundle_bytes(), kRowAlignment)) : pages;
  return layer;
}

void declare_layer(const PackedLayer& layer, const std::string& p, format::GgufWriter* writer) {
  const uint64_t f = layer.ffn.neurons;
  const uint64_t e = layer.ffn.experts;
  if (layer.rank > 0) {
    writer->add_tensor(p + "ffn_predict_low.weight", TensorType::kQ8_0, {layer.ffn.dim, layer.rank, e});
    writer->add_tensor(p + "ffn_predict_out.weight", TensorType::kQ4_0, {f, layer.rank, e});
    writer->add_tensor(p + "ffn_predict_threshold.weight", TensorType::kF32, {f, e});
  } else {
    writer->add_tensor(p + "ffn_bundle_gate.weight", layer.ffn.gate->type, {layer.ffn.dim, f, e});
    if (layer.sparsified) writer->add_tensor(p + "ffn_gate_threshold.weight", TensorType::kF32, {1});
  }
  if (layer.ffn.bias != nullptr) writer->add_tensor(p + "ffn_bundle_bias.weight", TensorType::kF32, {f});
  writer->add_tensor(p + "ffn_order.weight", TensorType::kI32, {f, e});
  writer->add_tensor(p + "ffn_frequency.weight", TensorType::kF32, {f, e});
  writer->add_tensor(p + "ffn_bundle.weight", TensorType::kI8, {layer.stride, f, e});
  writer->add_tensor(p + "ffn_check.weight", TensorType::kI64, {2, f, e});
}

Result<LayerThresholds> write_layer(const PackedLayer& layer, const ModelSource& source,
                                    const FitOptions& options, const CalibratedLayer& calibrated,
                                    format::GgufWriter* writer) {
  LayerWriter work(layer, source, options, calibrated.samples, calibrated.frequency);
  LayerData data;
  GANGLION_RETURN_IF_ERROR(work.fit(&data));
  if (layer.rank > 0) {
    GANGLION_RETURN_IF_ERROR(writer->write(data.low));
    GANGLION_RETURN_IF_ERROR(writer->write(data.out));
    GANGLION_RETURN_IF_ERROR(writer->write(bytes_of(data.thresholds.at(0, source.config().ffn_threshold))));
  } else {
    GANGLION_RETURN_IF_ERROR(work.gates(data.order, writer));
    const std::vector<float> threshold = {calibrated.gate_threshold};
    if (layer.sparsified) GANGLION_RETURN_IF_ERROR(writer->write(bytes_of(threshold)));
  }
  if (layer.ffn.bias != nullptr) GANGLION_RETURN_IF_ERROR(work.biases(data.order, writer));
  GANGLION_RETURN_IF_ERROR(writer->write(bytes_of(data.order)));
  GANGLION_RETURN_IF_ERROR(writer->write(bytes_of(data.frequency)));
  std::vector<int64_t> checks;
  for (uint32_t e = 0; e < layer.ffn.experts; ++e) {
    GANGLION_RETURN_IF_ERROR(work.bundles(
        e, std::span<const int32_t>(data.order).subspan(size_t{e} * layer.ffn.neurons, layer.ffn.neurons),
        writer, &checks));
  }
  GANGLION_RETURN_IF_ERROR(writer->write(bytes_of(checks)));
  return std::move(data.thresholds);
}

uint32_t carried_rank(const FfnMatrices& ffn) {
  return static_cast<uint32_t>(base::round_up(ffn.mlp_low->dims[1], 32));
}

Result<PackLayerReport> judge_layer(const FfnMatrices& ffn, uint32_t rank, bool carried, double recall,
                                    const ModelSource& source, const LayerSamples& samples) {
  const FitOptions options = {.down_type = DownType::kF16, .recall = recall};
  PackedLayer layer = lay_out_bundles(ffn, options.down_type, rank);
  layer.carried = carried;
  const std::vector<float> frequency(size_t{ffn.experts} * ffn.neurons, 0);
  LayerWriter work(layer, source, options, samples, frequency);
  LayerData data;
  GANGLION_RETURN_IF_ERROR(work.fit(&data));
  return data.thresholds.report(0);
}

uint64_t fitting_bytes(const PackedLayer& layer, const ModelSource& source, size_t samples) {
  const FfnMatrices& f = layer.ffn;
  const uint64_t up = source.rectified_up() ? 2 : 1;
  const uint64_t slices = (f.gate->bytes + f.up_bytes() + f.down->bytes) / f.experts;
  const uint64_t inputs = (f.experts > 1 ? 2 : 1) * samples * f.dim * sizeof(float);
  const uint64_t activations = up * samples * f.dim * (f.gate->type <= TensorType::kF16 ? 4 : 2);
  const uint32_t carried = f.mlp_low != nullptr ? carried_rank(f) : 0;
  const uint32_t rank = std::max(layer.rank, carried);
  const uint64_t fitted = predictor_fit_bytes(f.neurons, f.dim, rank, samples) * up;
  const uint64_t kept = uint64_t{f.experts} * (rank * 5 / 4 * (uint64_t{f.neurons} + f.dim) + 28 * f.neurons);
  const uint64_t carried_factors = 2 * carried * (uint64_t{f.neurons} + f.dim) * sizeof(float);
  return carried_factors + slices + uint64_t{f.neurons} * layer.down_bytes + inputs + activations + fitted +
         kept;
}

}  // namespace ganglion::calibration

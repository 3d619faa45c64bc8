#include "measure.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <numeric>
#include <span>

#include "aligned.h"
#include "base/units.h"
#include "format/gguf.h"
#include "ganglion/engine.h"
#include "kernels/kernel_table.h"
#include "kernels/random_blocks.h"
#include "low_rank.h"
#include "model_config/model_config.h"
#include "planted.h"
#include "platform/cpu.h"

namespace ganglion::synthesize {

using base::Code;
using base::Result;
using base::Status;
using format::TensorInfo;

namespace {

constexpr int32_t kFirstPlainToken = 259;  // After the special ones and the bytes.
constexpr size_t kRowsAtOnce = 64;

double cosine(std::span<const float> a, std::span<const float> b) {
  double ab = 0;
  double aa = 0;
  double bb = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    ab += static_cast<double>(a[i]) * static_cast<double>(b[i]);
    aa += static_cast<double>(a[i]) * static_cast<double>(a[i]);
    bb += static_cast<double>(b[i]) * static_cast<double>(b[i]);
  }
  return ab / std::sqrt(aa * bb);
}

// Keeps FFN inputs [layer][token][D], where tokens are routed to, and the spread of the logits.
class KeepInputs final : public LogitSink, public RoutingSink {
 public:
  void logits(size_t, std::span<const float> values) override {
    for (const float value : values) {
      sum_ += static_cast<double>(value);
      squares_ += static_cast<double>(value) * static_cast<double>(value);
    }
    count_ += static_cast<double>(values.size());
  }
  void ffn_input(size_t layer, size_t position, std::span<const float> x) override {
    if (layers.size() <= layer) layers.resize(layer + 1);
    std::vector<float>& rows = layers[layer];
    rows.resize(std::max(rows.size(), (position + 1) * x.size()));
    std::copy(x.begin(), x.end(), rows.begin() + static_cast<ptrdiff_t>(position * x.size()));
  }
  void begin_pass(size_t first_position) override { first_ = first_position; }
  void routed(size_t row, size_t layer, std::span<const uint32_t> experts) override {
    if (experts_.size() <= layer) experts_.resize(layer + 1);
    std::vector<uint32_t>& chosen = experts_[layer];
    chosen.resize(std::max(chosen.size(), (first_ + row + 1) * experts.size()));
    std::copy(experts.begin(), experts.end(),
              chosen.begin() + static_cast<ptrdiff_t>((first_ + row) * experts.size()));
  }
  /// Of `layer`, [token][used].
  std::span<const uint32_t> experts(size_t layer) const { return experts_[layer]; }
  double deviation() const { return std::sqrt(squares_ / count_ - sum_ / count_ * (sum_ / count_)); }

  std::vector<std::vector<float>> layers;

 private:
  double sum_ = 0;
  double squares_ = 0;
  double count_ = 0;
  size_t first_ = 0;
  std::vector<std::vector<uint32_t>> experts_;
};

Status run_tokens(const MeasureOptions& options, uint32_t vocab, KeepInputs* inputs) {
  EngineOptions engine_options;
  engine_options.model_path = options.path;
  engine_options.memory = options.memory;
  engine_options.threads = options.threads;
  engine_options.context = options.tokens;
  GANGLION_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine, Engine::open(engine_options));
  GANGLION_RETURN_IF_ERROR(engine->load(nullptr, nullptr));
  engine->set_routing_sink(inputs);
  GANGLION_ASSIGN_OR_RETURN(const std::unique_ptr<Session> session, engine->new_session());
  std::vector<int32_t> tokens;
  uint64_t random = options.seed * 2 + 1;
  const uint64_t plain = vocab - kFirstPlainToken;
  for (size_t i = 0; i < options.tokens; ++i)
    tokens.push_back(kFirstPlainToken + static_cast<int32_t>((kernels::next_random(&random) >> 20) % plain));
  return session->evaluate(tokens, nullptr, inputs);
}

/// Goes through a model's gates layer by layer; adds up what Measured says.
class Measurer {
 public:
  Measurer(const format::GgufModel& file, const model_config::ModelConfig& config, const KeepInputs& inputs,
           const MeasureOptions& options)
      : file_(file),
        config_(config),
        inputs_(inputs),
        tokens_(options.tokens),
        threads_(options.threads > 0 ? options.threads : platform::default_thread_count()) {}

  Result<Measured> run() {
    measure_cosines();
    for (size_t layer = 0; layer < config_.layers.size(); ++layer) GANGLION_RETURN_IF_ERROR(add_layer(layer));
    out_.active = mean(out_.active_by_layer);
    out_.top_30_share = top_30_ / activations_;
    out_.top_50_share = top_50_ / activations_;
    out_.ahead_recall = ahead_hits_ / ahead_active_;
    out_.ahead_precision = ahead_hits_ / ahead_found_;
    out_.logit_deviation = inputs_.deviation();
    return out_;
  }

 private:
  static double mean(const std::vector<double>& values) {
    return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
  }
  std::span<const float> input(size_t layer, size_t token) const {
    return {inputs_.layers[layer].data() + token * config_.dim, config_.dim};
  }

  void measure_cosines() {
    std::vector<double> adjacent;
    std::vector<double> neighbours;
    for (size_t layer = 0; layer < config_.layers.size(); ++layer) {
      for (size_t t = 0; t < tokens_; ++t) {
        if (layer > 0) adjacent.push_back(cosine(input(layer - 1, t), input(layer, t)));
        if (t > 0) neighbours.push_back(cosine(input(layer, t - 1), input(layer, t)));
      }
    }
    out_.token_cosine = mean(neighbours);
    if (adjacent.empty()) return;
    out_.cosine_mean = mean(adjacent);
    out_.cosine_least = *std::min_element(adjacent.begin(), adjacent.end());
    out_.cosine_most = *std::max_element(adjacent.begin(), adjacent.end());
  }

  Result<const TensorInfo*> find(size_t layer, const char* what, const char* suffix) const {
    const std::string name = "blk." + std::to_string(layer) + "." + what + suffix;
    const TensorInfo* tensor = file_.find_tensor(name);
    if (tensor != nullptr) return tensor;
    return Status(Code::kUnsupported,
                  "the model has no tensor " + name + ": its sparsity cannot be measured");
  }

  // Bytes of one slice of a tensor.
  Status read(const TensorInfo& tensor, size_t slice) {
    const std::string& path = file_.shards()[tensor.shard].path;
    weights_.resize(base::row_bytes(tensor.type, tensor.dims[0]) * tensor.dims[1]);
    std::FILE* in = std::fopen(path.c_str(), "rb");
    const auto at = static_cast<off_t>(tensor.offset + slice * weights_.size());
    const bool done = in != nullptr && ::fseeko(in, at, SEEK_SET) == 0 &&
                      std::fread(weights_.data(), 1, weights_.size(), in) == weights_.size();
    if (in != nullptr) std::fclose(in);
    return done ? base::ok_status()
                : Status(Code::kIo, "cannot read " + tensor.name + " from '" + path + "'");
  }

  // out [tokens][rows] = a slice of the tensor times the FFN inputs of `layer`, exactly as the engine does.
  Status multiply(const TensorInfo& tensor, size_t slice, size_t layer, std::vector<float>* out) {
    GANGLION_RETURN_IF_ERROR(read(tensor, slice));
    const kernels::ActivationForm form = kernels::activation_form(tensor.type);
    const size_t stride = kernels::activation_row_bytes(form, config_.dim);
    AlignedBytes x(tokens_ * stride);
    for (size_t t = 0; t < tokens_; ++t)
      kernels_.store_activation(form, input(layer, t).data(), config_.dim, x.bytes() + t * stride);
    const size_t rows = tensor.dims[1];
    const size_t row_bytes = base::row_bytes(tensor.type, tensor.dims[0]);
    out->resize(tokens_ * rows);
    threads_.parallel_for(rows, kRowsAtOnce, [&](size_t begin, size_t end, int) {
      kernels_.matmul[static_cast<size_t>(tensor.type)]({.weights = weights_.data() + begin * row_bytes,
                                                         .weight_stride = row_bytes,
                                                         .rows = end - begin,
                                                         .n = config_.dim,
                                                         .x = x.bytes(),
                                                         .x_stride = stride,
                                                         .tokens = tokens_,
                                                         .out = out->data() + begin,
                                                         .out_stride = rows});
    });
    return base::ok_status();
  }

  // goes_to_ [expert][token]
  void count_routed(size_t layer) {
    const size_t experts = config_.moe.expert_count;
    const size_t used = config_.moe.used_count;
    goes_to_.assign(experts * tokens_, 0);
    std::vector<double> share(experts);
    const double even = static_cast<double>(tokens_ * used) / static_cast<double>(experts);
    const std::span<const uint32_t> routed = inputs_.experts(layer);
    for (size_t i = 0; i < tokens_ * used; ++i) {
      goes_to_[routed[i] * tokens_ + i / used] = 1;
      share[routed[i]] += 1 / even;
    }
    out_.expert_least = std::min(out_.expert_least, *std::min_element(share.begin(), share.end()));
    out_.expert_most = std::max(out_.expert_most, *std::max_element(share.begin(), share.end()));
  }

  Status add_layer(size_t layer) {
    const bool moe = config_.layers[layer].moe;
    const size_t slices = moe ? config_.moe.expert_count : 1;
    const char* suffix = moe ? "_exps.weight" : ".weight";
    GANGLION_ASSIGN_OR_RETURN(const TensorInfo* gate, find(layer, "ffn_gate", suffix));
    GANGLION_ASSIGN_OR_RETURN(const TensorInfo* up, find(layer, "ffn_up", suffix));
    if (moe) {
      count_routed(layer);
    } else {
      goes_to_.assign(tokens_, 1);
    }
    const bool drelu = config_.activation == model_config::FfnActivation::kDRelu;
    layer_active_ = layer_all_ = 0;
    for (size_t slice = 0; slice < slices; ++slice) {
      if (layer > 0) GANGLION_RETURN_IF_ERROR(multiply(*gate, slice, layer - 1, &ahead_));
      if (drelu) GANGLION_RETURN_IF_ERROR(multiply(*up, slice, layer, &up_));
      GANGLION_RETURN_IF_ERROR(multiply(*gate, slice, layer, &gate_));
      if (layer == config_.layers.size() / 2 && slice == 0) measure_rank(*gate);
      const size_t rows = gate->dims[1];
      active_.resize(gate_.size());
      for (size_t i = 0; i < gate_.size(); ++i) active_[i] = gate_[i] > 0 && (!drelu || up_[i] > 0);
      add_active(rows, slice, layer > 0);
      add_shares(rows);
    }
    out_.active_by_layer.push_back(layer_active_ / layer_all_);
    return base::ok_status();
  }

  void measure_rank(const TensorInfo& gate) {
    const size_t rows = gate.dims[1];
    const size_t row_bytes = base::row_bytes(gate.type, config_.dim);
    std::vector<float> values(rows * config_.dim);
    for (size_t r = 0; r < rows; ++r) {
      kernels_.dequantize[static_cast<size_t>(gate.type)](weights_.data() + r * row_bytes, config_.dim,
                                                          &values[r * config_.dim]);
    }
    out_.rank = planted_rank(config_.dim, rows);
    out_.low_rank_share = low_rank_share(&values, config_.dim, out_.rank, threads_);
  }

  void add_active(size_t rows, size_t slice, bool has_ahead) {
    for (size_t t = 0; t < tokens_; ++t) {
      if (goes_to_[slice * tokens_ + t] == 0) continue;
      layer_all_ += static_cast<double>(rows);
      for (size_t i = t * rows; i < (t + 1) * rows; ++i) {
        layer_active_ += active_[i];
        if (!has_ahead) continue;
        const bool found = ahead_[i] > 0;
        ahead_active_ += active_[i];
        ahead_found_ += found ? 1 : 0;
        ahead_hits_ += found ? active_[i] : 0;
      }
    }
  }

  void add_shares(size_t rows) {
    const size_t half = tokens_ / 2;
    std::vector<double> rank(rows);
    std::vector<double> count(rows);
    std::vector<uint32_t> order(rows);
    for (size_t r = 0; r < rows; ++r) {
      double sum = 0;
      double squares = 0;
      for (size_t t = 0; t < half; ++t) {
        const auto value = static_cast<double>(gate_[t * rows + r]);
        sum += value;
        squares += value * value;
      }
      for (size_t t = half; t < tokens_; ++t) count[r] += active_[t * rows + r];
      const double average = sum / static_cast<double>(half);
      rank[r] = average / std::sqrt(squares / static_cast<double>(half) - average * average + 1e-12);
      order[r] = static_cast<uint32_t>(r);
    }
    std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return rank[a] > rank[b]; });
    for (size_t i = 0; i < rows; ++i) {
      activations_ += count[order[i]];
      if (10 * i < 3 * rows) top_30_ += count[order[i]];
      if (2 * i < rows) top_50_ += count[order[i]];
    }
  }

  const format::GgufModel& file_;
  const model_config::ModelConfig& config_;
  const KeepInputs& inputs_;
  const size_t tokens_;
  platform::ThreadPool threads_;
  const kernels::KernelTable& kernels_ = *kernels::available_tables()[0];
  Measured out_;
  std::vector<uint8_t> weights_;
  std::vector<float> gate_, up_, ahead_;  // [tokens][F]
  std::vector<uint8_t> active_;           // [tokens][F]
  std::vector<uint8_t> goes_to_;          // [expert][tokens]
  double layer_active_ = 0;
  double layer_all_ = 0;
  double activations_ = 0;
  double top_30_ = 0;
  double top_50_ = 0;
  double ahead_active_ = 0;
  double ahead_found_ = 0;
  double ahead_hits_ = 0;
};

}  // namespace

Result<Measured> measure(const MeasureOptions& options) {
  if (options.tokens < 8)
    return Status(Code::kInvalidArgument, base::format("%zu tokens, expected at least 8", options.tokens));
  GANGLION_ASSIGN_OR_RETURN(const format::GgufModel file, format::GgufModel::open(options.path));
  GANGLION_ASSIGN_OR_RETURN(const model_config::ModelConfig config,
                            model_config::read_model_config(file.metadata()));
  const TensorInfo* embedding = file.find_tensor("token_embd.weight");
  if (embedding == nullptr || embedding->dims[1] <= kFirstPlainToken)
    return Status(Code::kModelFile, "token_embd.weight is missing or has too few rows");
  KeepInputs inputs;
  GANGLION_RETURN_IF_ERROR(run_tokens(options, static_cast<uint32_t>(embedding->dims[1]), &inputs));
  if (!std::isfinite(inputs.deviation()))
    return Status(Code::kModelFile, "the model's logits are not finite");
  return Measurer(file, config, inputs, options).run();
}

std::string describe(const Measured& m) {
  std::string text;
  const size_t layers = m.active_by_layer.size();
  const size_t step = std::max<size_t>(1, (layers + 3) / 4);
  for (size_t begin = 0; begin < layers; begin += step) {
    const size_t end = std::min(layers, begin + step);
    const auto first = m.active_by_layer.begin() + static_cast<ptrdiff_t>(begin);
    const auto last = m.active_by_layer.begin() + static_cast<ptrdiff_t>(end);
    text += base::format("active, layers %zu to %zu: least %.2f %%, mean %.2f %%, most %.2f %%\n", begin,
                         end - 1, 100 * *std::min_element(first, last),
                         100 * std::accumulate(first, last, 0.0) / static_cast<double>(end - begin),
                         100 * *std::max_element(first, last));
  }
  text += base::format("active, all layers: %.2f %%\n", 100 * m.active);
  text += base::format("share of activations: %.1f %% from the top 30 %%, %.1f %% from the top 50 %%\n",
                       100 * m.top_30_share, 100 * m.top_50_share);
  text += base::format("cosine of adjacent FFN inputs: least %.4f, mean %.4f, most %.4f (of tokens: %.4f)\n",
                       m.cosine_least, m.cosine_mean, m.cosine_most, m.token_cosine);
  text += base::format("next layer's gates on this FFN input: recall %.1f %%, precision %.1f %%\n",
                       100 * m.ahead_recall, 100 * m.ahead_precision);
  text += base::format("rank %u holds %.1f %% of a gate's variance\n", m.rank, 100 * m.low_rank_share);
  if (m.expert_most > 1)
    text += base::format("experts: the least used of a layer has %.2f, the most used %.2f of an even share\n",
                         m.expert_least, m.expert_most);
  return text + base::format("logits: deviation %.3f\n", m.logit_deviation);
}

}  // namespace ganglion::synthesize

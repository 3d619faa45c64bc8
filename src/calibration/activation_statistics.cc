#include "calibration/activation_statistics.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "calibration/dense_rows.h"

namespace ganglion::calibration {

using base::Code;
using base::Result;
using base::Status;

namespace {

constexpr size_t kTokensAtOnce = 4096;
constexpr size_t kNeuronBlock = 512;

class LayerCounter {
 public:
  LayerCounter(const ModelSource& source, const ActivationSamples& samples, size_t layer)
      : source_(source),
        samples_(samples),
        layer_(layer),
        ffn_(source.layers()[layer]),
        tokens_(samples.tokens()),
        words_(base::ceil_div(tokens_, 64) + 1) {}

  Result<LayerStatistics> run(const std::function<bool()>& stop) {
    result_.fired.assign(kBatchCount * ffn_.experts * ffn_.neurons, 0);
    result_.squares.assign(ffn_.dim, 0);
    result_.routed.assign(ffn_.experts, 0);
    GANGLION_ASSIGN_OR_RETURN(bias_, source_.read_bias(ffn_));
    bias_.resize(ffn_.neurons, 0);
    for (uint32_t e = 0; e < ffn_.experts; ++e) {
      GANGLION_RETURN_IF_ERROR(source_.read_slice(*ffn_.gate, e, &gate_));
      if (source_.rectified_up()) GANGLION_RETURN_IF_ERROR(source_.read_slice(*ffn_.up, e, &up_));
      bits_.assign(ffn_.neurons * words_, 0);
      for (size_t begin = 0; begin < tokens_; begin += kTokensAtOnce) {
        if (stop()) return Status(Code::kCancelled, "interrupted");
        GANGLION_RETURN_IF_ERROR(load(begin, std::min(tokens_, begin + kTokensAtOnce)));
        if (e == 0) GANGLION_RETURN_IF_ERROR(add_squares());
        choose_rows(e);
        result_.routed[e] += static_cast<int32_t>(rows_.size());
        mark_fired();
      }
      count(e);
    }
    return std::move(result_);
  }

 private:
  Status load(size_t begin, size_t end) {
    if (begin == begin_ && end == end_) return base::ok_status();
    GANGLION_ASSIGN_OR_RETURN(part_, samples_.read(layer_, begin, end));
    begin_ = begin;
    end_ = end;
    return base::ok_status();
  }

  Status add_squares() {
    bool finite = true;
    for (size_t t = 0; t < end_ - begin_; ++t) {
      for (size_t d = 0; d < ffn_.dim; ++d) {
        const auto x = static_cast<double>(part_.inputs[t * ffn_.dim + d]);
        result_.squares[d] += x * x;
      }
    }
    for (const double sum : result_.squares) finite = finite && std::isfinite(sum);
    if (finite) return base::ok_status();
    return Status(Code::kModelFile,
                  base::format("the inputs of layer %zu's FFN are not finite numbers in half "
                               "precision: this model cannot be calibrated",
                               layer_));
  }

  // The tokens of the part that are routed to an expert, and their inputs.
  void choose_rows(uint32_t expert) {
    rows_.clear();
    gathered_.clear();
    for (size_t t = 0; t < end_ - begin_; ++t) {
      if (!part_.experts.empty()) {
        const uint32_t* routed = &part_.experts[t * ffn_.used];
        if (std::find(routed, routed + ffn_.used, expert) == routed + ffn_.used) continue;
        const float* x = &part_.inputs[t * ffn_.dim];
        gathered_.insert(gathered_.end(), x, x + ffn_.dim);
      }
      rows_.push_back(begin_ + t);
    }
  }

  void products(const format::TensorInfo& matrix, const std::vector<uint8_t>& weights, size_t first,
                const Activations& x, Rows* out) const {
    multiply(source_.kernels(), source_.threads(),
             {.type = matrix.type,
              .data = weights.data() + first * base::row_bytes(matrix.type, ffn_.dim),
              .rows = std::min(kNeuronBlock, ffn_.neurons - first),
              .n = ffn_.dim},
             x, rows_.size(), out);
  }

  void mark_fired() {
    if (rows_.empty()) return;
    const float* inputs = part_.experts.empty() ? part_.inputs.data() : gathered_.data();
    const bool both = source_.rectified_up();
    const float threshold = source_.config().ffn_threshold;
    const Activations gate_x(source_.kernels(), source_.threads(), ffn_.gate->type, rows_.size(), ffn_.dim,
                             inputs, ffn_.dim);
    const Activations up_x(source_.kernels(), source_.threads(), (both ? ffn_.up : ffn_.gate)->type,
                           both ? rows_.size() : 0, ffn_.dim, inputs, ffn_.dim);
    Rows gate(rows_.size(), kNeuronBlock);
    Rows up(both ? rows_.size() : 0, kNeuronBlock);
    for (size_t first = 0; first < ffn_.neurons; first += kNeuronBlock) {
      products(*ffn_.gate, gate_, first, gate_x, &gate);
      if (both) products(*ffn_.up, up_, first, up_x, &up);
      const size_t count = std::min(kNeuronBlock, ffn_.neurons - first);
      source_.threads().parallel_for(count, 32, [&](size_t begin, size_t end, int) {
        for (size_t i = 0; i < rows_.size(); ++i) {
          const uint64_t bit = uint64_t{1} << rows_[i] % 64;
          for (size_t n = begin; n < end; ++n) {
            if (gate[i][n] + bias_[first + n] > threshold && (!both || up[i][n] > 0))
              bits_[(first + n) * words_ + rows_[i] / 64] |= bit;
          }
        }
      });
    }
  }

  void count(uint32_t expert) {
    source_.threads().parallel_for(ffn_.neurons, 256, [&](size_t begin, size_t end, int) {
      for (size_t n = begin; n < end; ++n) {
        for (size_t b = 0; b < kBatchCount; ++b) {
          result_.fired[(b * ffn_.experts + expert) * ffn_.neurons + n] =
              static_cast<int32_t>(count_groups(&bits_[n * words_], tokens_, kBatches[b]));
        }
      }
    });
  }

  const ModelSource& source_;
  const ActivationSamples& samples_;
  size_t layer_;
  const FfnMatrices& ffn_;
  size_t tokens_;
  size_t words_;  // of a neuron's bits, one more than they fill
  LayerStatistics result_;
  std::vector<uint8_t> gate_, up_;
  std::vector<float> bias_;     // [F]
  std::vector<uint64_t> bits_;  // [F][words]: by token, whether it fires the neuron
  LayerSamples part_;           // of tokens [begin, end)
  size_t begin_ = 0;
  size_t end_ = 0;
  std::vector<size_t> rows_;     // numbers of the tokens that an expert sees
  std::vector<float> gathered_;  // their inputs
};

}  // namespace

size_t count_groups(const uint64_t* bits, size_t tokens, uint32_t size) {
  const size_t groups = batch_groups(tokens, size);
  const auto load = [bits](size_t at) {
    const uint64_t low = bits[at / 64] >> at % 64;
    return at % 64 == 0 ? low : low | bits[at / 64 + 1] << (64 - at % 64);
  };
  size_t count = 0;
  for (size_t first = 0; first < groups; first += 64) {
    uint64_t any = 0;
    for (uint32_t k = 0; k < size; ++k) any |= load(k * groups + first);
    if (groups - first < 64) any &= (uint64_t{1} << (groups - first)) - 1;
    count += static_cast<size_t>(std::popcount(any));
  }
  return count;
}

Result<LayerStatistics> count_layer(const ModelSource& source, const ActivationSamples& samples, size_t layer,
                                    const std::function<bool()>& stop) {
  return LayerCounter(source, samples, layer).run(stop);
}

}  // namespace ganglion::calibration
